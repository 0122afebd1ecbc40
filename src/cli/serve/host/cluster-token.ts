// The token of a cluster: given by its operator, or drawn once on this host for the processes of this user.
import { randomBytes } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { codeOf } from './make-folder.ts';

/** @throws Error in one line if no token is given, and none can be kept on this host */
export function clusterToken(given: string | undefined, folder = stateFolder()): string {
  if (given !== undefined) return given;
  const path = join(folder, 'cluster-token');
  const known = readToken(path);
  if (known !== undefined) return known;
  // An atomic write that never replaces the token of another process.
  const draft = `${path}.${process.pid}`;
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    writeFileSync(draft, `${randomBytes(24).toString('base64url')}\n`, { mode: 0o600 });
    linkSync(draft, path);
  } catch (error) {
    if (codeOf(error) !== 'EEXIST')
      throw new Error(`Cannot keep a token for the cluster at ${path}: ${codeOf(error)}: give --token or KVASIR_TOKEN`);
  } finally {
    rmSync(draft, { force: true });
  }
  return readToken(path) ?? clusterToken(given, folder);
}

function stateFolder(): string {
  return join(process.env.XDG_STATE_HOME || join(homedir(), '.local', 'state'), 'kvasir');
}

function readToken(path: string): string | undefined {
  let text: string;
  try {
    text = readFileSync(path, 'utf8').trim();
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw new Error(`Cannot read the token of the cluster at ${path}: ${codeOf(error)}: give --token or KVASIR_TOKEN`);
  }
  if (text.length < 16) throw new Error(`Cannot read ${path}: it is not a token of a cluster: remove it`);
  return text;
}
