// Builds a program of this folder against the llama.cpp library that node-llama-cpp ships, inside the folder where that was installed.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

/**
 * @param {string} folder where `npm install node-llama-cpp` was run
 * @param {'peer' | 'values' | 'attention'} program
 * @returns {{ binary: string, libraries: string }}
 */
export function buildPeer(folder, program = 'peer') {
  const source = join(dirname(fileURLToPath(import.meta.url)), `${program}.cpp`);
  const libraries = librariesIn(resolve(folder));
  const work = join(resolve(folder), 'kvasir-peer');
  mkdirSync(work, { recursive: true });
  const headers = headersIn(resolve(folder), work);
  const binary = join(work, program);
  if (existsSync(binary) && statSync(binary).mtimeMs > statSync(source).mtimeMs) return { binary, libraries };
  linkPlainNames(libraries, work);
  const includes = ['include', 'ggml/include'].map((path) => `-I${join(headers, path)}`);
  const places = [`-L${work}`, `-L${libraries}`, `-Wl,-rpath,${libraries}`, '-Wl,--allow-shlib-undefined'];
  run(process.env.CXX ?? 'c++', [
    ...['-O2', '-std=c++17', source, ...includes, ...places],
    ...['-lllama', '-lggml', '-lggml-base', '-o', binary],
  ]);
  return { binary, libraries };
}

function librariesIn(folder) {
  const platform = `${process.platform === 'darwin' ? 'mac' : process.platform}-${process.arch}`;
  const found = join(folder, 'node_modules', '@node-llama-cpp', platform, 'bins', platform);
  if (existsSync(found)) return found;
  throw new Error(`Cannot build the peer: ${found} is missing: run npm install node-llama-cpp in ${folder}`);
}

/**
 * A folder with a single CPU library: the peer loads the best one that it finds, and has no option to choose.
 * @param {string} folder where `npm install node-llama-cpp` was run
 * @param {string} cpu as in libggml-cpu-NAME.so: haswell, zen4, ...
 */
export function onlyCpu(folder, cpu) {
  const libraries = librariesIn(resolve(folder));
  const name = readdirSync(libraries).find((file) => file.startsWith(`libggml-cpu-${cpu}.`));
  if (name === undefined) throw new Error(`Cannot choose the peer's CPU library: ${libraries} has none for ${cpu}`);
  const alone = join(resolve(folder), 'kvasir-peer', `cpu-${cpu}`);
  mkdirSync(alone, { recursive: true });
  rmSync(join(alone, name), { force: true });
  symlinkSync(join(libraries, name), join(alone, name));
  return alone;
}

/** Extracts the headers from the git bundle of the package. */
function headersIn(folder, work) {
  const headers = join(work, 'llama.cpp');
  if (!existsSync(join(headers, 'include', 'llama.h'))) {
    rmSync(headers, { recursive: true, force: true });
    run('git', ['clone', '--quiet', join(folder, 'node_modules/node-llama-cpp/llama/gitRelease.bundle'), headers]);
  }
  return headers;
}

/** Links libX.so, which the linker requires, to libX.v1.so of the package. */
function linkPlainNames(libraries, work) {
  for (const name of readdirSync(libraries)) {
    const plain = name.replace(/\.v[^/]*(\.(?:so|dylib))$/, '$1');
    if (plain === name) continue;
    rmSync(join(work, plain), { force: true });
    symlinkSync(join(libraries, name), join(work, plain));
  }
}

function run(command, args) {
  const { status, error } = spawnSync(command, args, { stdio: ['ignore', 'inherit', 'inherit'] });
  if (status !== 0) throw new Error(`Cannot build the peer: ${command} ended with ${error?.message ?? status}`);
}
