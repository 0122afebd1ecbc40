// The rules of the tree: which room may import which, what pure rooms may not name, how long files and functions may be.
import { builtinModules } from 'node:module';
import { posix } from 'node:path';
import { mayImport, rooms } from '../../scripts/rooms.mjs';
import type { SourceFile } from './source-tree.ts';
import type { FileSyntax } from './syntax.ts';
import { readSyntax } from './syntax.ts';

export const fileLinesMax = 600;
export const functionLinesMax = 60;

const clocksTimersAndNode = new Set([
  ...['Date', 'performance', 'setTimeout', 'setInterval', 'setImmediate', 'queueMicrotask'],
  ...['process', 'Buffer', 'console', 'require', 'globalThis', 'crypto', 'fetch'],
]);

const nodeModules = new Set(builtinModules);

/** Every breach in the tree, one line each: `path: what`. */
export function breachesOf(files: readonly SourceFile[]): readonly string[] {
  return files.flatMap((file) =>
    [...textBreaches(file), ...syntaxBreaches(file)].map((what) => `${file.path}: ${what}`),
  );
}

function textBreaches({ path, text }: SourceFile): string[] {
  const breaches: string[] = [];
  const lines = text.split('\n').length - 1;
  if (lines > fileLinesMax) breaches.push(`${lines} lines, at most ${fileLinesMax}`);
  const body = text.replace(/^#!.*\n/, '');
  if (!/^(\/\/|\/\*)/.test(body)) breaches.push('does not open with a comment on what lives in it');
  // Split, so that this file does not breach its own rule.
  const mark = text.match(
    new RegExp(['TO', 'DO|FIX', 'ME|X', 'XX|@ts-', '(?:ignore|expect-error|nocheck)|biome-', 'ignore'].join('')),
  );
  if (mark !== null) breaches.push(`holds ${mark[0]}`);
  if (path.startsWith('test/') && path.endsWith('.test.ts') && !isKnownTestFolder(path)) {
    breaches.push('tests no room: its folder under test/ has the name of no room');
  }
  return breaches;
}

function isKnownTestFolder(path: string): boolean {
  const [, folder, rest] = path.split('/');
  if (rest === undefined || folder === undefined) return true;
  return folder in rooms || ['native', 'scripts', 'e2e', 'contract', 'docs', 'fuzz'].includes(folder);
}

function syntaxBreaches(file: SourceFile): string[] {
  if (!/\.(ts|mjs)$/.test(file.path)) return [];
  const syntax = readSyntax(file);
  const breaches: string[] = [];
  if (!file.path.startsWith('test/')) {
    for (const { line, lines } of syntax.functions) {
      if (lines > functionLinesMax)
        breaches.push(`function at line ${line} has ${lines} lines, at most ${functionLinesMax}`);
    }
  }
  const [top, room] = file.path.split('/');
  if (top !== 'src' || room === undefined) return breaches;
  const rule = rooms[room];
  if (rule === undefined) return [...breaches, `src/${room} is not in the table of rooms`];
  breaches.push(...importBreaches(file.path, room, syntax.imports));
  if (rule.pure) breaches.push(...purityBreaches(syntax));
  return breaches;
}

function importBreaches(path: string, room: string, imports: readonly string[]): string[] {
  return imports.flatMap((specifier) => {
    if (!specifier.startsWith('.')) return packageBreaches(room, specifier);
    if (!specifier.endsWith('.ts')) return [`imports ${specifier} without its .ts extension`];
    const target = posix.join(posix.dirname(path), specifier).replace(/\.ts$/, '');
    if (!target.startsWith('src/')) return [`imports ${specifier}, outside src`];
    return mayImport(room, target.slice('src/'.length)) ? [] : [`${room} may not import ${target}`];
  });
}

function packageBreaches(room: string, specifier: string): string[] {
  if (rooms[room]?.pure !== true) return [];
  if (specifier.startsWith('node:') || nodeModules.has(specifier))
    return [`${room} is pure and may not import ${specifier}`];
  return rooms[room].packages?.includes(specifier) === true ? [] : [`${room} is pure and may not import ${specifier}`];
}

function purityBreaches({ names, members }: FileSyntax): string[] {
  const breaches = [...names].filter((name) => clocksTimersAndNode.has(name)).map((name) => `names ${name}`);
  if (members.has('Math.random')) breaches.push('names Math.random');
  return breaches;
}
