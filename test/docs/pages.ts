// The Markdown pages of the repository, and the parts of them that tests look at.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import { root } from '../../scripts/root.mjs';

export interface Page {
  /** Relative to the root. */
  readonly path: string;
  readonly text: string;
}

/** README, docs, and the pages of tools and models; without the changelog, which names former things. */
export function readPages(): readonly Page[] {
  const below = ['docs', 'tools', 'models'].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
      .map((name) => `${folder}/${name.replaceAll('\\', '/')}`)
      .filter((path) => path.endsWith('.md'))
      .sort(),
  );
  return ['README.md', ...below].map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }));
}

/** Without fenced code. */
export function proseOf(text: string): string {
  return text.replace(/^ *```[\s\S]*?^ *```/gm, '');
}

/** Contents of `code` in prose. */
export function codeOf(text: string): readonly string[] {
  return [...proseOf(text).matchAll(/`([^`]+)`/g)].map(([, code]) => code.replaceAll('\n', ' '));
}

/** Relative links with a file or a heading that does not exist, one line each. */
export function brokenLinks({ path, text }: Page, pages: readonly Page[]): readonly string[] {
  return [...proseOf(text).matchAll(/\]\(([^)\s]+)\)/g)].flatMap(([, link]) => {
    if (/^(https?:|mailto:)/.test(link)) return [];
    const [file, anchor] = link.split('#');
    const target = file === '' ? path : posix.join(dirname(path), file);
    if (!existsSync(join(root, target))) return [`${path}: ${link} does not exist`];
    const page = pages.find((each) => each.path === target);
    if (anchor === undefined || page === undefined) return [];
    return anchorsOf(page.text).includes(anchor) ? [] : [`${path}: ${link} has no such heading`];
  });
}

/** As GitHub makes them. */
function anchorsOf(text: string): readonly string[] {
  return [...text.replace(/^ *```[\s\S]*?^ *```/gm, '').matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  );
}

/** Paths in code that do not exist: `src/core/cost`, `experiments/cpp.yaml`, `test/e2e/cluster/cluster*.test.ts`. */
export function missingPaths({ path, text }: Page): readonly string[] {
  const folders =
    /^(src|native(?!\/(?:f32|bf16|int8))|test|scripts|docs|tools|experiments|specs|models|web)\/[\w./*-]+$/;
  return codeOf(text)
    .flatMap((code) => code.split(' '))
    .filter((word) => folders.test(word) && !exists(word.replace(/[.,:]$/, '')))
    .map((word) => `${path}: ${word} does not exist`);
}

function exists(path: string): boolean {
  if (!path.includes('*')) return existsSync(join(root, path));
  const folder = dirname(path);
  if (!existsSync(join(root, folder))) return false;
  const [start, end] = posix.basename(path).split('*');
  return readdirSync(join(root, folder)).some((name) => name.startsWith(start) && name.endsWith(end));
}
