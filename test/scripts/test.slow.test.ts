// `npm test` closes with counts that are true, whatever happens to the tests.
import { describe, expect, it } from 'vitest';
import { scriptTree } from './script-tree.ts';

const passes = "import { expect, it } from 'vitest';\nit('passes', () => expect(1).toBe(1));\n";
const fails = "it('fails', () => expect(1).toBe(2));\n";
const skips = "it.skip('skips', () => {});\n";

function closing(files: Readonly<Record<string, string>>, args: readonly string[] = []) {
  const tree = scriptTree();
  for (const [path, text] of Object.entries(files)) tree.write(path, text);
  const { status, output } = tree.run('test.mjs', { args });
  return { status, last: output.trimEnd().split('\n').at(-1) };
}

describe('npm test', () => {
  it('counts what failed and what was skipped', () => {
    const last = '1 passed, 1 failed, 1 skipped';
    expect(closing({ 'a.test.js': passes + fails + skips })).toEqual({ status: 1, last });
  });

  it('counts a file that cannot be run as a failure', () => {
    expect(closing({ 'a.test.js': passes, 'b.test.js': 'this is no JavaScript' })).toEqual({
      status: 1,
      last: '1 passed, 1 failed',
    });
  });

  it('counts an error outside every test as a failure', () => {
    const rejects = "it('leaves a rejection', () => { Promise.reject(new Error('late')); });\n";
    expect(closing({ 'a.test.js': passes + rejects })).toEqual({ status: 1, last: '2 passed, 1 failed' });
  });

  it('fails when vitest itself cannot start', () => {
    const broken = "throw new Error('no configuration');\n";
    expect(closing({ 'a.test.js': passes, 'vitest.config.js': broken })).toEqual({
      status: 1,
      last: '0 passed, 1 failed',
    });
  });

  it('leaves slow kinds of tests out with --fast', () => {
    const config = "export default ({ mode }) => ({ test: { include: mode === 'fast' ? ['a.*'] : ['*.test.js'] } });\n";
    const files = { 'a.test.js': passes, 'slow.test.js': passes, 'vitest.config.js': config };
    expect(closing(files, ['--fast'])).toEqual({ status: 0, last: '1 passed, 0 failed' });
    expect(closing(files)).toEqual({ status: 0, last: '2 passed, 0 failed' });
  });

  it('passes arguments on', () => {
    const files = { 'a.test.js': passes, 'b.test.js': passes + fails };
    expect(closing(files, ['a.test'])).toEqual({ status: 0, last: '1 passed, 0 failed' });
  });
});
