// Chooses the native kernels for a command that computes: platform package, local build, TypeScript oracle. Each choice is announced.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { buildNative, hasNativeSources, nativeBuildId } from './build-native.mjs';
import { root } from './root.mjs';

/** The commands that compute with kernels; every other one starts without them. */
export const computingCommands = ['serve', 'join', 'generate', 'chat', 'bench'];

/** True if `kvasir ...args` computes: help never does. */
export function needsKernels(args) {
  return computingCommands.includes(args[0]) && !args.some((arg) => arg === '--help' || arg === '-h');
}

/**
 * Makes the addon available to this process and its children; `report` receives the choice and the reason why an earlier one does
 * not serve. Requires a built dist/.
 */
export async function prepareNative(report) {
  if (!hasNativeSources()) return;
  if ((process.env.KVASIR_NATIVE ?? '') !== '') {
    report(`native kernels: ${process.env.KVASIR_NATIVE} (KVASIR_NATIVE)`);
    return;
  }
  const packages = await import(pathToFileURL(join(root, 'dist', 'kernel', 'native', 'platform-package.js')).href);
  const found = packages.findPlatformPackage();
  const reason = found === undefined ? undefined : unusable(found, packages.publishedBuild() ?? nativeBuildId());
  if (found !== undefined && reason === undefined) {
    // In a checkout the addon would otherwise be sought in build/.
    process.env.KVASIR_NATIVE = found.addon;
    report(`native kernels: ${found.title}`);
    return;
  }
  if (found !== undefined) report(`cannot use ${found.title}: ${reason}`);
  const local = packages.localAddon();
  const isCurrent = await compileIfPossible(report);
  if (!isCurrent || !existsSync(local)) return;
  if (found !== undefined) process.env.KVASIR_NATIVE = local;
  report('native kernels: compiled on this machine');
}

/** Compiles the local build, except where this user may not write it: false. */
async function compileIfPossible(report) {
  try {
    await buildNative(report);
    return true;
  } catch (error) {
    if (!['EACCES', 'EPERM', 'EROFS'].includes(error.code)) throw error;
    report(
      `cannot compile the native kernels (${error.message}): the TypeScript oracle computes instead, which is slow`,
    );
    return false;
  }
}

/** Why a platform package cannot serve this release, in one line; undefined if it can. */
function unusable({ addon, build }, ownBuild) {
  if (build !== ownBuild) return `it has build ${build} of the native kernels, this release ${ownBuild}`;
  try {
    createRequire(import.meta.url)(addon);
    return undefined;
  } catch (error) {
    return error.message.split('\n')[0];
  }
}
