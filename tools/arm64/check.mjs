// Compiles native/ for arm64 Linux and runs the C++ checks under emulation, on machines without arm64 hardware.
// node tools/arm64/check.mjs   (Debian: apt install g++-aarch64-linux-gnu qemu-user; $ARM64_CXX and $ARM64_RUN name others)
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { basename, join, relative } from 'node:path';
import { nodeApiIncludes } from '../../scripts/build-native.mjs';
import { filesUnder } from '../../scripts/files.mjs';
import { root } from '../../scripts/root.mjs';

const compiler = process.env.ARM64_CXX ?? 'aarch64-linux-gnu-g++';
const runner = process.env.ARM64_RUN ?? 'qemu-aarch64';
const flags = ['-std=c++17', '-O2', '-Wall', '-Wextra', '-Werror', '-ffp-contract=off', '-fno-math-errno', '-fno-trapping-math'];
const checks = ['linear_check', 'attention_check'];

const native = join(root, 'native');
const folder = mkdtempSync(join(tmpdir(), 'kvasir-arm64-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));

function run(command, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: 'inherit' });
    child.on('error', (error) => reject(new Error(`Cannot check arm64: ${command}: ${error.message}`)));
    child.on('close', (code) =>
      code === 0 ? resolve() : reject(new Error(`Cannot check arm64: ${command} exited ${code}: ${args.at(-1)}`)),
    );
  });
}

/** Compiles the sources that belong to no x86 instruction set. Returns their objects. */
async function compileAll() {
  const sources = filesUnder(native).filter((path) => path.endsWith('.cc') && !/[/_](avx2|avx512|amx)\.cc$/.test(path));
  const objects = sources.map((path) => join(folder, `${relative(native, path).replaceAll('/', '.')}.o`));
  let next = 0;
  const worker = async () => {
    while (next < sources.length) {
      const i = next++;
      const includes = ['-I', native, ...nodeApiIncludes()];
      await run(compiler, [...flags, '-fPIC', ...includes, '-c', sources[i], '-o', objects[i]]);
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, worker));
  return objects;
}

const objects = await compileAll();
console.log(`compiled ${objects.length} files for arm64`);
const kernels = objects.filter((path) => !/^(addon|bench)\./.test(basename(path)));
for (const check of checks) {
  const program = join(folder, check);
  const source = join(root, 'test', 'native', `${check}.cc`);
  await run(compiler, [...flags, '-static', '-pthread', '-I', native, source, ...kernels, '-o', program]);
  await run(runner, [program]);
}
