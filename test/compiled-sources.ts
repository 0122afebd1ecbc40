// Tests import src/*.ts; they run the compiled modules of dist/, which Node loads faster than vitest loads sources.
import { dirname, join, relative, resolve } from 'node:path';
import { root } from '../scripts/root.mjs';

/** A plugin of vitest that resolves a module of src/ to its compiled form. Node imports it: vitest does not transform it. */
export const compiledSources = {
  name: 'compiled-sources',
  enforce: 'pre' as const,
  resolveId(source: string, importer: string | undefined) {
    if (importer === undefined || !source.startsWith('.') || !source.endsWith('.ts')) return;
    const path = relative(join(root, 'src'), resolve(dirname(importer), source));
    if (path.startsWith('..')) return;
    return { id: join(root, 'dist', path.replace(/\.ts$/, '.js')), external: true };
  },
};
