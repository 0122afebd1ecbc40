// Writes the TypeScript project of every room that has source files, from the table in rooms.mjs.
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { referencesOf, rooms } from './rooms.mjs';

/** The rooms below `root/src` that hold at least one TypeScript file. */
export function roomsWithSources(root) {
  return Object.keys(rooms).filter((room) => {
    const folder = join(root, 'src', room);
    return existsSync(folder) && readdirSync(folder, { recursive: true }).some((name) => `${name}`.endsWith('.ts'));
  });
}

/** Every tsconfig that the tree at `root` should have, as repository-relative path to text. */
export function expectedTsconfigs(root) {
  const present = roomsWithSources(root);
  const files = new Map();
  for (const room of present) {
    files.set(`src/${room}/tsconfig.json`, render(roomProject(room, present)));
  }
  const projects = [...present.map((room) => ({ path: `./src/${room}` })), { path: './test' }];
  files.set('tsconfig.json', render({ files: [], references: projects }));
  files.set('test/tsconfig.json', render(testProject(present)));
  return files;
}

function roomProject(room, present) {
  return {
    extends: '../../tsconfig.base.json',
    compilerOptions: {
      rootDir: '.',
      outDir: `../../dist/${room}`,
      tsBuildInfoFile: `../../dist/${room}.tsbuildinfo`,
      types: rooms[room].pure ? [] : ['node'],
    },
    include: ['**/*.ts'],
    references: referencesOf(room, (other) => present.includes(other)).map((other) => ({ path: `../${other}` })),
  };
}

function testProject(present) {
  return {
    extends: '../tsconfig.base.json',
    compilerOptions: {
      rootDir: '..',
      composite: false,
      declaration: false,
      incremental: true,
      noEmit: true,
      allowJs: true,
      rewriteRelativeImportExtensions: false,
      tsBuildInfoFile: '../dist/test.tsbuildinfo',
      types: ['node'],
    },
    include: ['**/*.ts'],
    exclude: ['data'],
    references: present.map((room) => ({ path: `../src/${room}` })),
  };
}

function render(project) {
  const text = JSON.stringify(project, undefined, 2);
  // Short lists stay on one line, as the formatter requires.
  const flat = text.replace(/\[\s+("[^\]{}]*")\s+\]/g, (_, items) => `[${items.replace(/\s+/g, ' ')}]`);
  return `${flat.replace(/\{\s+("path": "[^"]+")\s+\}/g, '{ $1 }')}\n`;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const root = dirname(dirname(fileURLToPath(import.meta.url)));
  for (const [path, text] of expectedTsconfigs(root)) {
    const full = join(root, path);
    if (existsSync(full) && readFileSync(full, 'utf8') === text) continue;
    writeFileSync(full, text);
    console.log(`wrote ${path}`);
  }
}
