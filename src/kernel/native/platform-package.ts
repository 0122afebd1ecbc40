// Finds the compiled addon: the platform package that npm installed as an optional dependency, or the local build.
import { closeSync, openSync, readFileSync, readSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** `@kvasir/native-linux-x64` and its like: one compiled addon for one platform. */
export interface PlatformPackage {
  /** Name and version, for messages. */
  readonly title: string;
  readonly addon: string;
  /** `nativeBuildId` of the sources that the addon was compiled from. */
  readonly build: string;
}

const packageRoot = fileURLToPath(new URL('../../../', import.meta.url));

/** `linux-x64`, `linux-x64-musl`, `darwin-arm64`: the last part of the name of this machine's platform package. */
export function platformName(executable: string = process.execPath): string {
  const name = `${process.platform}-${process.arch}`;
  return process.platform === 'linux' && usesMusl(executable) ? `${name}-musl` : name;
}

/** True if the ELF interpreter of an executable, named in its first bytes, is the one of musl. */
function usesMusl(executable: string): boolean {
  const start = Buffer.alloc(2048);
  const file = openSync(executable, 'r');
  try {
    readSync(file, start, 0, start.length, 0);
  } finally {
    closeSync(file);
  }
  return start.includes('/ld-musl-');
}

/** The platform package for this machine that code in the folder `from` can load; undefined if none is installed. */
export function findPlatformPackage(
  from: string = packageRoot,
  platform: string = platformName(),
): PlatformPackage | undefined {
  const name = `@kvasir/native-${platform}`;
  let path: string;
  try {
    path = createRequire(join(from, 'package.json')).resolve(`${name}/package.json`);
  } catch {
    return undefined;
  }
  const { version, nativeBuild } = readManifest(path);
  return { title: `${name} ${version}`, addon: join(dirname(path), 'kvasir.node'), build: `${nativeBuild}` };
}

/** The id of the native sources that a published manifest states; undefined in a checkout, whose sources may change. */
export function publishedBuild(from: string = packageRoot): string | undefined {
  return readManifest(join(from, 'package.json')).nativeBuild;
}

/** Path of the addon that `npm run build` and the `kvasir` command compile. */
export function localAddon(from: string = packageRoot): string {
  return join(from, 'build', 'kvasir.node');
}

/**
 * Path of the addon to load: what `KVASIR_NATIVE` names, the platform package of a published release, or the local build.
 */
export function addonPath(from: string = packageRoot): string {
  const named = process.env.KVASIR_NATIVE ?? '';
  if (named !== '') return named;
  const known = installedAddons.get(from) ?? installedAddon(from);
  installedAddons.set(from, known);
  return known;
}

/** By package root: packages do not change while a process runs, and a step may ask for the addon. */
const installedAddons = new Map<string, string>();

function installedAddon(from: string): string {
  const build = publishedBuild(from);
  const found = build === undefined ? undefined : findPlatformPackage(from);
  return found !== undefined && found.build === build ? found.addon : localAddon(from);
}

function readManifest(path: string): { readonly version?: string; readonly nativeBuild?: string } {
  return JSON.parse(readFileSync(path, 'utf8'));
}
