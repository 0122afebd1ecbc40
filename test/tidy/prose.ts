// The rules of plain English that a machine can check: words for people in comments and pages, and the width of Markdown lines.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseSync } from 'oxc-parser';
import type { SourceFile } from './source-tree.ts';

export const markdownColumnsMax = 120;
export const tableColumnsMax = 160;

/** Pronouns for people, in comments, pages, messages and names of tests. A process, a request or a byte is "which", "that", or has a name. */
const peopleWords = /\b(?:who|whom|whoever|whomever|nobody|somebody|anybody)\b/gi;

/** True uses about people. Each is removed from the text before the words are counted. */
const aboutPeople: readonly string[] = ['people who', 'users who', 'Nobody can do it the first time', 'Who are you?'];

/** Breaches that remain in folders that are not clean yet, as upper bounds. Every folder is clean. */
export const remaining: Readonly<Record<string, number>> = {};

/** Pages, and configuration with comments, that the source tree does not have. */
export function readPages(root: string): readonly SourceFile[] {
  const folders = ['docs', 'experiments', 'models', 'specs', 'tools'];
  const below = folders
    .filter((folder) => existsSync(join(root, folder)))
    .flatMap((folder) => filesBelow(root, folder));
  const paths = [...['README.md', 'CHANGELOG.md'].filter((path) => existsSync(join(root, path))), ...below];
  return paths.map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }));
}

function filesBelow(root: string, folder: string): string[] {
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .map((name) => `${folder}/${name.replaceAll('\\', '/')}`)
    .filter((path) => /\.(md|yaml|mjs|cpp|py|sh)$/.test(path))
    .sort();
}

/** Every breach of the rules of prose, one line each, by folder. */
export function proseBreaches(files: readonly SourceFile[]): ReadonlyMap<string, readonly string[]> {
  const breaches = new Map<string, string[]>();
  for (const file of files) {
    const folder = folderOf(file.path);
    const isMarkdown = file.path.endsWith('.md');
    add(folder, [...wordBreaches(file, proseOf(file)), ...(isMarkdown ? widthBreaches(file) : [])]);
    add(`${folder} (strings)`, wordBreaches(file, stringsOf(file)));
  }
  return breaches;

  function add(folder: string, found: readonly string[]): void {
    if (found.length > 0) breaches.set(folder, [...(breaches.get(folder) ?? []), ...found]);
  }
}

/** `src/core`, `native`, `README.md`: what the table above names. */
function folderOf(path: string): string {
  const [top, second] = path.split('/');
  return top === 'src' || top === 'test' ? `${top}/${second?.includes('.') ? '' : second}` : `${top}`;
}

function wordBreaches(file: SourceFile, prose: readonly Prose[]): string[] {
  return prose.flatMap(({ start, text }) => {
    const rest = aboutPeople.reduce((kept, phrase) => kept.replaceAll(phrase, '-'.repeat(phrase.length)), text);
    return [...rest.matchAll(peopleWords)].map(
      ({ 0: word, index }) => `${file.path}:${lineAt(file.text, start + index)}: "${word}"`,
    );
  });
}

interface Prose {
  /** Offset of `text` in its file. */
  readonly start: number;
  readonly text: string;
}

function proseOf({ path, text }: SourceFile): Prose[] {
  if (path.endsWith('.md')) return [{ start: 0, text }];
  if (/\.(ts|mjs)$/.test(path)) {
    return parseSync(path, text).comments.map(({ start, end }) => ({ start, text: text.slice(start, end) }));
  }
  // Comments with the string literals before them, so that a mark of a comment within a string is none.
  const token = /\.(yaml|py|sh)$/.test(path)
    ? /(?<=^|\s)#.*$/gm
    : /\/\/[^\n]*|\/\*[\s\S]*?\*\/|R"\(([\s\S]*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'/g;
  return [...text.matchAll(token)]
    .filter(([found]) => /^[/#]/.test(found))
    .map((found) => ({ start: found.index, text: found[0] }));
}

/** String literals: messages, and names of tests. */
function stringsOf({ path, text }: SourceFile): Prose[] {
  if (!/\.(ts|mjs)$/.test(path)) return [];
  const code = parseSync(path, text).comments.reduce(
    (kept, { start, end }) => `${kept.slice(0, start)}${' '.repeat(end - start)}${kept.slice(end)}`,
    text,
  );
  return [...code.matchAll(/'(?:\\.|[^'\\\n])*'|`[^`]*`|"(?:\\.|[^"\\\n])*"/g)].map((found) => ({
    start: found.index,
    text: found[0],
  }));
}

function lineAt(text: string, offset: number): number {
  return text.slice(0, offset).split('\n').length;
}

function widthBreaches({ path, text }: SourceFile): string[] {
  let fenced = false;
  return text.split('\n').flatMap((line, index) => {
    if (/^\s*```/.test(line)) fenced = !fenced;
    if (fenced || isLinkAlone(line)) return [];
    const columnsMax = line.trimStart().startsWith('|') ? tableColumnsMax : markdownColumnsMax;
    const columns = [...line].length;
    return columns > columnsMax ? [`${path}:${index + 1}: ${columns} columns, at most ${columnsMax}`] : [];
  });
}

/** A link or an image that cannot be broken. */
function isLinkAlone(line: string): boolean {
  return /^\s*(?:[-*] )?!?\[[^\]]*\]\([^)]*\)[.,;]?$/.test(line) || /^\s*\[[^\]]*\]: \S+$/.test(line);
}
