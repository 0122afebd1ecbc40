// The choice of native kernels with fake platform packages, the commands that do without, and the published manifests.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { addonOf, hash, nativeBuildId, optimised } from '../../scripts/build-native.mjs';
import { computingCommands, needsKernels } from '../../scripts/native-choice.mjs';
import { platformManifest, platformNames, releaseManifest } from '../../scripts/packages.mjs';
import { root } from '../../scripts/root.mjs';
import { addonPath, localAddon, platformName } from '../../src/kernel/native/platform-package.ts';
import { scriptTree } from './script-tree.ts';

const addon = addonOf(optimised);
const withAddon = it.skipIf(!existsSync(addon));
const packageName = `@kvasir/native-${platformName()}`;
const source = 'int one() { return 1; }\n';
const buildId = hash([`native/one.cc\n${source}`]);
const chosenBy = `import { prepareNative } from './native-choice.mjs';
  await prepareNative(console.log);
  console.log(process.env.KVASIR_NATIVE ?? 'unset');\n`;

/** A project with one native source, and without a compiler. `choose` returns the announced lines, the chosen path last. */
function project() {
  const tree = scriptTree();
  rmSync(join(tree.root, 'node_modules'));
  const compiled = join('dist', 'kernel', 'native', 'platform-package.js');
  tree.write(compiled, readFileSync(join(root, compiled), 'utf8'));
  tree.write('native/one.cc', source);
  tree.write('scripts/choose.mjs', chosenBy);
  const folder = join(tree.root, 'node_modules', packageName);
  const withPackage = (build: string, binary: string | undefined) => {
    mkdirSync(folder, { recursive: true });
    writeFileSync(
      join(folder, 'package.json'),
      JSON.stringify({ name: packageName, version: '1.2.3', nativeBuild: build }),
    );
    if (binary === undefined) writeFileSync(join(folder, 'kvasir.node'), 'not a library');
    else symlinkSync(binary, join(folder, 'kvasir.node'));
  };
  return {
    ...tree,
    packageAddon: join(folder, 'kvasir.node'),
    withPackage,
    choose: (env: Readonly<Record<string, string>> = {}) => {
      const { output } = tree.run('choose.mjs', { env: { PATH: '/nonexistent', CXX: '', KVASIR_NATIVE: '', ...env } });
      return output.trimEnd().split('\n');
    },
  };
}

describe('the choice of native kernels', () => {
  withAddon('takes the platform package that was compiled from these sources', () => {
    const tree = project();
    tree.withPackage(buildId, addon);
    expect(tree.choose()).toEqual([`native kernels: ${packageName} 1.2.3`, tree.packageAddon]);
  });

  it('announces a platform package of other sources, then the oracle if nothing can compile', () => {
    const tree = project();
    tree.withPackage('0123456789abcdef', undefined);
    const [mismatch, oracle] = tree.choose();
    expect(mismatch).toMatch(
      new RegExp(`^cannot use ${packageName} 1.2.3: it has build 0123456789abcdef of the native kernels, this release`),
    );
    expect(oracle).toMatch(/^no C\+\+ compiler found .*: the TypeScript oracle computes instead/);
  });

  it('announces a platform package that does not load, then takes the local build of these sources', () => {
    const tree = project();
    tree.withPackage(buildId, undefined);
    tree.write('build/kvasir.node', '');
    tree.write('build/kvasir.stamp', JSON.stringify({ text: buildId }));
    const [failure, ...rest] = tree.choose();
    expect(failure).toMatch(new RegExp(`^cannot use ${packageName} 1.2.3: .*kvasir.node`));
    expect(rest).toEqual(['native kernels: compiled on this machine', join(tree.root, 'build/kvasir.node')]);
  });

  it('takes the addon that KVASIR_NATIVE names', () => {
    const chosen = project().choose({ KVASIR_NATIVE: '/opt/kvasir.node' });
    expect(chosen).toEqual(['native kernels: /opt/kvasir.node (KVASIR_NATIVE)', '/opt/kvasir.node']);
  });

  it('in a published release is the same without the command: its package if the build id agrees', () => {
    const named = process.env.KVASIR_NATIVE;
    delete process.env.KVASIR_NATIVE;
    onTestFinished(() => {
      if (named !== undefined) process.env.KVASIR_NATIVE = named;
    });
    const release = (build: string) => {
      const folder = mkdtempSync(join(tmpdir(), 'kvasir-release-'));
      onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
      const write = (path: string, value: object) => {
        mkdirSync(dirname(join(folder, path)), { recursive: true });
        writeFileSync(join(folder, path), JSON.stringify(value));
      };
      write('package.json', { version: '1.2.3', nativeBuild: 'a' });
      write(`node_modules/${packageName}/package.json`, { version: '1.2.3', nativeBuild: build });
      return folder;
    };
    const [same, other] = [release('a'), release('b')];
    expect(addonPath(same)).toBe(join(same, 'node_modules', packageName, 'kvasir.node'));
    expect(addonPath(other)).toBe(localAddon(other));
  });
});

describe('commands that do not compute', () => {
  it('are all but five, and every help', () => {
    expect(computingCommands.filter((name) => !needsKernels([name, '--threads', '1']))).toEqual([]);
    for (const args of [[], ['--help'], ['trace', 'stats'], ['simulate'], ['serve', '--help'], ['bench', 'http', '-h']])
      expect(needsKernels(args)).toBe(false);
  });

  it('simulate neither compiles nor loads an addon', () => {
    const tree = scriptTree();
    for (const path of ['bundle', 'dist', 'specs']) symlinkSync(join(root, path), join(tree.root, path));
    tree.write('package.json', readFileSync(join(root, 'package.json'), 'utf8'));
    tree.write('native/broken.cc', 'this is no C++\n');
    const refuseAddons = 'data:text/javascript,process.dlopen=()=>{throw new Error("loads an addon")}';
    const args = [
      '--import',
      refuseAddons,
      'scripts/kvasir.mjs',
      'simulate',
      '--workload',
      'plain',
      '--requests',
      '5',
      '--json',
    ];
    const { status, stderr } = spawnSync(process.execPath, args, { cwd: tree.root, encoding: 'utf8' });
    expect(stderr).not.toMatch(/native|addon/);
    expect(status).toBe(0);
    expect(existsSync(join(tree.root, 'build'))).toBe(false);
  });
});

describe('published manifests', () => {
  const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const build = nativeBuildId();

  it('name every platform package as an optional dependency of the same version, without scripts', () => {
    const { optionalDependencies, nativeBuild, scripts, devDependencies } = releaseManifest(manifest, build);
    const names = platformNames.map((name) => platformManifest(name, manifest, build).name);
    expect(optionalDependencies).toEqual(Object.fromEntries(names.map((name) => [name, manifest.version])));
    expect({ nativeBuild, scripts, devDependencies }).toEqual({ nativeBuild: build });
  });

  it('state the machine and the sources of each addon', () => {
    expect(platformManifest('linux-x64-musl', manifest, build)).toMatchObject({
      ...{ name: '@kvasir/native-linux-x64-musl', version: manifest.version, nativeBuild: build },
      ...{ os: ['linux'], cpu: ['x64'], libc: ['musl'], files: ['kvasir.node'] },
    });
    expect(platformManifest('darwin-arm64', manifest, build)).toMatchObject({ os: ['darwin'], cpu: ['arm64'] });
  });
});
