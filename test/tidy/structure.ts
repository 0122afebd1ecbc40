// The structure that the tree keeps: no import cycles, no crowded folders, and the order of the folders of core/.
import { posix } from 'node:path';
import { coreFolders } from '../../scripts/rooms.mjs';
import type { SourceFile } from './source-tree.ts';
import { readSyntax } from './syntax.ts';

export const folderFilesMax = 20;

/** Path to the paths that it imports, type imports included; only files of `src/`. */
export type ImportGraph = ReadonlyMap<string, readonly string[]>;

export function importGraphOf(files: readonly SourceFile[]): ImportGraph {
  const graph = new Map<string, readonly string[]>();
  for (const file of files) {
    if (!file.path.startsWith('src/') || !file.path.endsWith('.ts')) continue;
    const local = readSyntax(file).imports.filter((specifier) => specifier.startsWith('.'));
    graph.set(
      file.path,
      local.map((specifier) => posix.join(posix.dirname(file.path), specifier)),
    );
  }
  return graph;
}

/** Groups of files that import each other in a circle (strongly connected components, Tarjan 1972), each as one sorted line. */
export function importCyclesOf(graph: ImportGraph): readonly string[] {
  const order = new Map<string, number>();
  const low = new Map<string, number>();
  const stack: string[] = [];
  const cycles: string[] = [];
  const visit = (path: string): void => {
    order.set(path, order.size);
    low.set(path, order.size - 1);
    stack.push(path);
    for (const next of graph.get(path) ?? []) {
      if (!graph.has(next)) continue;
      if (!order.has(next)) visit(next);
      if (stack.includes(next)) low.set(path, Math.min(low.get(path) ?? 0, low.get(next) ?? 0));
    }
    if (low.get(path) !== order.get(path)) return;
    const members = stack.splice(stack.indexOf(path));
    if (members.length > 1) cycles.push(members.sort().join(' '));
  };
  for (const path of graph.keys()) if (!order.has(path)) visit(path);
  return cycles;
}

/** Imports between folders of core/ that the table in rooms.mjs does not allow: `from > to: file -> file`. */
export function coreOrderBreachesOf(graph: ImportGraph): readonly string[] {
  return [...graph].flatMap(([path, imports]) => {
    const from = coreFolderOf(path);
    if (from === undefined) return [];
    return imports.flatMap((target) => {
      const to = coreFolderOf(target);
      if (to === undefined || to === from || coreFolders[from]?.includes(to) === true) return [];
      return [`${from} > ${to}: ${path} -> ${target}`];
    });
  });
}

function coreFolderOf(path: string): string | undefined {
  const [, room, folder, rest] = path.split('/');
  return room === 'core' && rest !== undefined ? folder : undefined;
}

/** Folders of sources with more files than a reader can survey: `folder: count`. */
export function crowdedFoldersOf(files: readonly SourceFile[]): readonly string[] {
  const counts = new Map<string, number>();
  for (const { path } of files) {
    const folder = posix.dirname(path);
    counts.set(folder, (counts.get(folder) ?? 0) + 1);
  }
  return [...counts].flatMap(([folder, count]) => (count > folderFilesMax ? [`${folder}: ${count}`] : []));
}
