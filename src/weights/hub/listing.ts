// What the hub says a repository holds at a revision: its commit, and every file with size and hash.
import { z } from 'zod';
import type { HubClient } from './client.ts';
import { HubError } from './errors.ts';
import { type HubReference, isCommit, isInsideRelative } from './reference.ts';
import { withRetries } from './retry.ts';

export interface RemoteFile {
  /** Relative, inside the repository. */
  readonly path: string;
  readonly bytes: number;
  /** Large files: sha256 of the content. Small ones: Git's sha1 of the blob. Names the blob in the cache too. */
  readonly hash: { readonly kind: 'sha256' | 'git-sha1'; readonly hex: string };
}

export interface Listing {
  readonly commit: string;
  readonly files: ReadonlyMap<string, RemoteFile>;
}

const pagesMax = 1000;

const bytes = z.number().int().min(0);
const revisionSchema = z.object({ sha: z.string().refine(isCommit, 'no commit') });
const treeSchema = z.array(z.looseObject({ type: z.string() }));
const fileSchema = z.object({
  path: z.string(),
  size: bytes,
  oid: z.string().regex(/^[0-9a-f]{40}$/),
  lfs: z.object({ oid: z.string().regex(/^[0-9a-f]{64}$/), size: bytes }).nullish(),
});

/** @throws HubError when the hub cannot be asked, refuses, or lists what cannot be */
export async function listRepository(client: HubClient, reference: HubReference, retriesMax: number): Promise<Listing> {
  const api = `${client.settings.endpoint}/api/models/${reference.id}`;
  const what = `Cannot reach ${client.settings.endpoint}`;
  const ask = (url: string) =>
    withRetries(what, { retriesMax, signal: client.signal, sleep: client.sleep }, () => client.json(url, reference));
  const { body } = await ask(`${api}/revision/${encodeURIComponent(reference.revision)}`);
  const commit = parsed(revisionSchema, body, reference).sha;
  const files = new Map<string, RemoteFile>();
  let url: string | undefined = `${api}/tree/${commit}?recursive=true`;
  for (let page = 0; url !== undefined; page++) {
    if (page === pagesMax) throw new HubError('corrupt', `Cannot use ${reference.text}: its list of files has no end`);
    const { body, next }: Awaited<ReturnType<HubClient['json']>> = await ask(url);
    for (const entry of parsed(treeSchema, body, reference)) {
      if (entry.type !== 'file') continue;
      const file = remoteFile(parsed(fileSchema, entry, reference), reference);
      files.set(file.path, file);
    }
    url = next;
  }
  return { commit, files };
}

function remoteFile({ path, size, oid, lfs }: z.infer<typeof fileSchema>, reference: HubReference): RemoteFile {
  if (!isInsideRelative(path))
    throw new HubError(
      'corrupt',
      `Cannot use ${reference.text}: its list names '${path}', which is outside the repository`,
    );
  if (lfs === null || lfs === undefined) return { path, bytes: size, hash: { kind: 'git-sha1', hex: oid } };
  return { path, bytes: lfs.size, hash: { kind: 'sha256', hex: lfs.oid } };
}

function parsed<T>(schema: z.ZodType<T>, body: unknown, reference: HubReference): T {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const key = issue?.path.map(String).join('.') ?? '';
  throw new HubError(
    'corrupt',
    `Cannot use ${reference.text}: the hub's answer is misshapen: ${issue?.message} (${key})`,
  );
}
