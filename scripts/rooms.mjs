// The table of rooms: what each may import besides `util`, and whether it may use Node.
// To add a room: add a line here and run `node scripts/write-tsconfigs.mjs`.

/** What the library composes of the command line's room: how an engine is opened, and the options of models. */
const commandParts = ['cli/serve', 'cli/options', 'cli/package-root', 'cli/usage-error', 'cli/usage-issue'];

/**
 * `imports` names rooms, folders of a room, or single files of it (`room/folder`, `room/file`). `pure` rooms compile
 * without Node's types and may import only the packages named here.
 * @type {Readonly<Record<string, { imports: readonly string[], pure: boolean, packages?: readonly string[] }>>}
 */
export const rooms = {
  util: { imports: [], pure: true },
  core: { imports: [], pure: true },
  trace: { imports: ['core'], pure: true },
  sim: { imports: ['core', 'trace'], pure: true },
  text: { imports: [], pure: true, packages: ['@huggingface/jinja', '@huggingface/tokenizers'] },
  graph: { imports: [], pure: true },
  models: { imports: ['graph'], pure: true },
  weights: { imports: [], pure: false },
  kernel: { imports: ['graph'], pure: false },
  engine: { imports: ['graph', 'models', 'weights', 'kernel', 'text'], pure: false },
  runtime: { imports: ['core', 'engine'], pure: false },
  gateway: { imports: ['core/protocol', 'text'], pure: false },
  bench: { imports: everyRoomBut('bench', 'cli'), pure: false },
  cli: { imports: everyRoomBut('cli'), pure: false },
  library: { imports: ['core/protocol', 'gateway', 'text', 'weights', 'kernel', ...commandParts], pure: false },
};

/**
 * What each folder of `core/` may import besides itself and `util`. Lower folders come first and never import higher ones.
 * @type {Readonly<Record<string, readonly string[]>>}
 */
export const coreFolders = {
  protocol: [],
  cost: ['protocol'],
  kvcache: ['protocol', 'cost'],
  scheduler: ['protocol', 'cost', 'kvcache'],
  transfer: ['protocol', 'cost', 'kvcache', 'scheduler'],
  pipeline: ['protocol', 'cost', 'kvcache', 'scheduler', 'transfer'],
  lending: ['protocol', 'cost', 'kvcache', 'scheduler'],
  'attention-workers': ['protocol', 'cost', 'kvcache', 'scheduler'],
  instance: ['protocol', 'cost', 'kvcache', 'scheduler', 'transfer', 'pipeline', 'lending', 'attention-workers'],
  fleet: ['protocol', 'cost', 'kvcache'],
  router: ['protocol', 'cost', 'kvcache', 'scheduler', 'pipeline', 'fleet'],
  membership: ['protocol', 'kvcache'],
};

/** All rooms except those named: what a composition root imports. */
function everyRoomBut(...excluded) {
  const all = ['core', 'trace', 'sim', 'text', 'graph', 'models', 'weights', 'kernel', 'engine', 'runtime'];
  return [...all, 'gateway', 'bench'].filter((room) => !excluded.includes(room));
}

/** The rooms that the project of `room` references, `util` first; without those for which `exists` is false. */
export function referencesOf(room, exists) {
  const imported = room === 'util' ? [] : ['util', ...rooms[room].imports.map((target) => target.split('/')[0])];
  return imported.filter(exists);
}

/** True when a file of room `from` may import `target`, a path below `src/` without its extension. */
export function mayImport(from, target) {
  const to = target.split('/')[0];
  if (to === from || to === 'util') return true;
  return rooms[from].imports.some(
    (allowed) => allowed === to || target === allowed || target.startsWith(`${allowed}/`),
  );
}
