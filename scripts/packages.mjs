// Makes the npm packages of a release in build/packages: `kvasir`, and `@kvasir/native-*` with compiled kernels for each platform.
// Arguments: the platforms to compile, all of them if there is none. Requires zig, which compiles for all of them.
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { addonOf, compileAddon, nativeBuildId, optimised } from './build-native.mjs';
import { root } from './root.mjs';

const outFolder = join(root, 'build', 'packages');

/** glibc 2.28 is the oldest that Node 20 runs on. */
const platforms = {
  'linux-x64': { triple: 'x86_64-linux-gnu.2.28', os: 'linux', cpu: 'x64', libc: 'glibc' },
  'linux-arm64': { triple: 'aarch64-linux-gnu.2.28', os: 'linux', cpu: 'arm64', libc: 'glibc' },
  'linux-x64-musl': { triple: 'x86_64-linux-musl', os: 'linux', cpu: 'x64', libc: 'musl' },
  'darwin-arm64': { triple: 'aarch64-macos.12.0', os: 'darwin', cpu: 'arm64' },
};

export const platformNames = Object.keys(platforms);

const packageName = (platform) => `@kvasir/native-${platform}`;

/** The manifest of a platform package. @param release manifest of the checkout @param build id of the native sources */
export function platformManifest(platform, release, build) {
  const { os, cpu, libc } = platforms[platform];
  return {
    name: packageName(platform),
    version: release.version,
    description: `The compiled kernels of kvasir for ${platform}`,
    license: release.license,
    main: 'kvasir.node',
    files: ['kvasir.node'],
    os: [os],
    cpu: [cpu],
    ...(libc !== undefined && { libc: [libc] }),
    engines: release.engines,
    publishConfig: { access: 'public' },
    nativeBuild: build,
  };
}

/**
 * The published manifest of `kvasir`: the platform packages are optional dependencies of exactly its version. The manifest of the
 * checkout lacks them, because `npm ci` of a new version would look for packages that are not published yet.
 */
export function releaseManifest(release, build) {
  const { scripts: _scripts, devDependencies: _tools, ...kept } = release;
  const optional = platformNames.map((platform) => [packageName(platform), release.version]);
  return { ...kept, optionalDependencies: Object.fromEntries(optional), nativeBuild: build };
}

/** @returns {{ command: string, prefix: string[], version: string }} */
function findZig() {
  const candidates = [process.env.ZIG, 'zig', 'python3 -m ziglang'].filter((words) => (words ?? '') !== '');
  for (const candidate of candidates) {
    const [command, ...prefix] = candidate.split(' ');
    const answer = spawnSync(command, [...prefix, 'version'], { encoding: 'utf8' });
    if (answer.status === 0) return { command, prefix, version: answer.stdout.trim() };
  }
  throw new Error('Cannot compile for other platforms: no zig found (tried $ZIG, zig, python3 -m ziglang)');
}

/** Compiles the addon of a platform; objects of unchanged sources are reused. @returns its path */
async function compileFor(platform, zig) {
  const { triple, os, cpu } = platforms[platform];
  const compiler = {
    command: zig.command,
    prefix: [...zig.prefix, 'c++', '-target', triple],
    name: `zig ${zig.version} for ${triple}`,
    arch: cpu,
    platform: os,
    families: optimised.families,
    warn: (text) => process.stderr.write(text),
  };
  const variant = {
    ...optimised,
    folder: join(root, 'build', 'platforms', platform),
    what: `the native kernels for ${platform}`,
    // clang lacks one of GCC's warnings.
    flags: ['-Wno-unknown-warning-option'],
    linkFlags: ['-s'],
  };
  await compileAddon(compiler, variant, console.log);
  return addonOf(variant);
}

const readme = (platform) => `# ${packageName(platform)}

The compiled kernels of [kvasir](https://www.npmjs.com/package/kvasir) for ${platform}. npm installs this package with
kvasir on such a machine; nothing is compiled there. It contains node-addon-api (MIT) and LLVM's libc++ (Apache-2.0
with LLVM exceptions).
`;

/** @returns the path of the tarball */
async function packPlatform(platform, zig, release, build) {
  const folder = join(outFolder, platform);
  mkdirSync(folder, { recursive: true });
  copyFileSync(await compileFor(platform, zig), join(folder, 'kvasir.node'));
  copyFileSync(join(root, 'LICENSE'), join(folder, 'LICENSE'));
  writeFileSync(join(folder, 'README.md'), readme(platform));
  return pack(folder, platformManifest(platform, release, build));
}

/** The checkout's own package, with the published manifest. @returns the path of the tarball */
function packRelease(release, build) {
  const [unpacked, parent] = [join(outFolder, 'kvasir', 'package'), join(outFolder, 'kvasir')];
  rmSync(parent, { recursive: true, force: true });
  mkdirSync(parent, { recursive: true });
  run('npm', ['pack', '--silent', '--pack-destination', parent], root);
  const [tarball] = readdirSync(parent);
  run('tar', ['-xzf', tarball], parent);
  rmSync(join(parent, tarball));
  return pack(unpacked, releaseManifest(release, build));
}

function pack(folder, manifest) {
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);
  run('npm', ['pack', '--silent', '--ignore-scripts', '--pack-destination', outFolder], folder);
  const name = manifest.name.replace('@', '').replace('/', '-');
  return join(outFolder, `${name}-${manifest.version}.tgz`);
}

function run(command, args, cwd) {
  const { status, error, stderr } = spawnSync(command, args, { cwd, encoding: 'utf8' });
  if (status !== 0) throw new Error(`Cannot run ${command} ${args.join(' ')}: ${error?.message ?? stderr}`);
}

async function main(names) {
  const unknown = names.find((name) => !platformNames.includes(name));
  if (unknown !== undefined)
    throw new Error(`Cannot pack for '${unknown}': the platforms are ${platformNames.join(', ')}`);
  const release = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const build = nativeBuildId();
  mkdirSync(outFolder, { recursive: true });
  const zig = findZig();
  for (const platform of names.length === 0 ? platformNames : names)
    console.log(await packPlatform(platform, zig, release, build));
  console.log(packRelease(release, build));
}

if (existsSync(process.argv[1] ?? '') && import.meta.url === pathToFileURL(process.argv[1]).href) {
  try {
    await main(process.argv.slice(2));
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  }
}
