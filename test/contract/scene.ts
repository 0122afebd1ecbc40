// A scene: a small program with its weights, pages and step, which any backend can run; its outputs are compared.
import { expect } from 'vitest';
import type { BufferId, BufferSpec, Op } from '../../src/graph/program.ts';
import type {
  Backend,
  KvPoolHandle,
  LinearSpec,
  RemoteAttentionHandle,
  StepOutcome,
} from '../../src/kernel/backend.ts';
import type { KvType } from '../../src/util/kv-type.ts';
import { type LayerGroup, pageTokens, type Step, type StepResult } from '../../src/util/step.ts';

export interface Scene {
  readonly buffers: readonly BufferSpec[];
  readonly ops: readonly Op[];
  readonly logits?: BufferId;
  readonly kvType?: KvType;
  /** Bytes of each segment of each layer. */
  readonly linears?: readonly { readonly spec: LinearSpec; readonly segments: readonly Uint8Array[] }[];
  readonly vectors?: readonly Float32Array[];
  readonly kv?: { readonly kvHeads: number; readonly headDim: number; readonly pages: number };
  /** Content of pages 0, 1, ... */
  readonly pages?: readonly Float32Array[];
  readonly inputs: ReadonlyMap<BufferId, Float32Array>;
  /** `server` of its remote keys is an index into `servers`. */
  readonly step: Step;
  readonly servers?: readonly SceneServer[];
  /** Maximum positions of the program; undefined: as many as the longest test needs. */
  readonly contextMax?: number;
}

/** A creditor: its pool and the lent blocks. */
export interface SceneServer {
  readonly pages: readonly Float32Array[];
  readonly loans: readonly {
    readonly loan: number;
    readonly blocks: Int32Array;
    /** (blocks, layers) */
    readonly pages: Int32Array;
  }[];
}

/** How a debtor connects to a server: the handle for its remote keys, valid until closed. */
export type Connect = (
  backend: Backend,
  pool: KvPoolHandle,
  server: RemoteAttentionHandle,
) => { readonly server: RemoteAttentionHandle; readonly close: () => void };

const inProcess: Connect = (_, __, server) => ({ server, close: () => {} });

export interface Wanted {
  readonly buffers?: readonly BufferId[];
  readonly pages?: readonly number[];
}

export interface Played {
  readonly buffers: readonly Float32Array[];
  readonly pages: readonly Float32Array[];
  readonly outcome: StepOutcome;
}

const mostPositions = 4096;
const noAbort = new Int32Array(1);

/** Runs the scene on a backend, reads the requested outputs, and frees all that it created. */
export function play(
  backend: Backend,
  scene: Scene,
  wanted: Wanted,
  abort: Int32Array = noAbort,
  connect: Connect = inProcess,
): Played {
  const linears = (scene.linears ?? []).map(({ spec, segments }) => {
    const linear = backend.createLinear(spec);
    for (const [segment, bytes] of segments.entries()) {
      backend.packRows(linear, segment, 0, spec.segments[segment].rows, bytes);
    }
    return linear;
  });
  const vectors = (scene.vectors ?? []).map((values) => backend.createVector(values));
  const type = scene.kvType ?? 'f32';
  const pool = backend.createKvPool({ type, ...(scene.kv ?? { kvHeads: 1, headDim: 1, pages: 1 }) });
  for (const [page, values] of (scene.pages ?? []).entries()) backend.writePage(pool, page, values);
  const servers = (scene.servers ?? []).map((server) => openServer(backend, scene, server));
  const connections = servers.map(({ pool, server }) => connect(backend, pool, server));
  const remote = scene.step.remote.map((keys) => ({ ...keys, server: connections[keys.server].server }));
  const rows = { token: scene.step.tokens.length, logit: scene.step.logitRows.length };
  const { buffers, ops, logits, contextMax = mostPositions } = scene;
  const program = backend.createProgram(
    { buffers, ops, logits, hidden: undefined, kvType: type, groups: groupsOf(ops) },
    { linears, vectors, tokensMax: rows.token + 1, logitRowsMax: rows.logit + 1, contextMax },
  );
  try {
    for (const [buffer, values] of scene.inputs) {
      backend.writeBuffer(program, buffer, rows[buffers[buffer].rows], values);
    }
    const outcome = backend.run(program, pool, { ...scene.step, remote }, abort);
    return {
      buffers: (wanted.buffers ?? []).map((id) => backend.readBuffer(program, id, rows[buffers[id].rows])),
      pages: (wanted.pages ?? []).map((page) => backend.readPage(pool, page)),
      outcome,
    };
  } finally {
    backend.freeProgram(program);
    for (const connection of connections) connection.close();
    for (const { server, pool } of servers) {
      backend.freeRemoteAttentionServer(server);
      backend.freeKvPool(pool);
    }
    backend.freeKvPool(pool);
    for (const vector of vectors) backend.freeVector(vector);
    for (const linear of linears) backend.freeLinear(linear);
  }
}

function openServer(backend: Backend, scene: Scene, { pages, loans }: SceneServer) {
  const { kvHeads, headDim } = scene.kv ?? { kvHeads: 1, headDim: 1 };
  const pool = backend.createKvPool({ kvHeads, headDim, type: scene.kvType ?? 'f32', pages: pages.length });
  for (const [page, values] of pages.entries()) backend.writePage(pool, page, values);
  const server = backend.createRemoteAttentionServer(pool);
  for (const { loan, blocks, pages: lent } of loans) backend.lendBlocks(server, loan, blocks, lent);
  return { pool, server };
}

/** The layer groups that the ops refer to. */
export function groupsOf(ops: readonly Op[]): readonly LayerGroup[] {
  const groups: LayerGroup[] = [];
  for (const op of ops) {
    if (op.kind !== 'qkv' && op.kind !== 'attention') continue;
    const { group, index } = op.layer;
    const known = groups[group];
    const window = op.kind === 'attention' ? op.window : known?.window;
    groups[group] = { layers: Math.max(known?.layers ?? 0, index + 1), window };
  }
  return groups;
}

export function resultOf(played: Played): StepResult {
  if (played.outcome.kind !== 'done') throw new Error('the step was aborted');
  return played.outcome.result;
}

/** Numbers in (-scale, scale), a function of the seed alone. Counters are scrambled because tests draw hundreds of millions. */
export function numbers(seed: number, count: number, scale = 1): Float32Array {
  const values = new Float32Array(count);
  const start = scrambled(seed);
  for (let i = 0; i < count; i++) values[i] = ((scrambled(start + i) + 0.5) / 2 ** 31 - 1) * scale;
  return values;
}

/** A hash of 32 bits that decorrelates consecutive numbers. */
function scrambled(counter: number): number {
  let bits = Math.imul(counter, 0x9e3779b9);
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

export function pageValues(kvHeads: number, headDim: number): number {
  return 2 * kvHeads * pageTokens * headDim;
}

/** Every value within its tolerance; NaN equals NaN. */
export function expectClose(
  got: Float32Array,
  wanted: Float32Array,
  tolerance: (index: number) => number,
  what: string,
): void {
  expect(got.length, `${what}: length`).toBe(wanted.length);
  for (let i = 0; i < got.length; i++) {
    const close = Object.is(got[i], wanted[i]) || got[i] === wanted[i] || Math.abs(got[i] - wanted[i]) <= tolerance(i);
    if (!close) expect.fail(`${what}[${i}] is ${got[i]}, not ${wanted[i]} within ${tolerance(i)}`);
  }
}

/** Equal bits. */
export function expectSameBits(got: Float32Array, wanted: Float32Array, what: string): void {
  const bits = (values: Float32Array) => new Uint32Array(values.buffer, values.byteOffset, values.length);
  const [gotBits, wantedBits] = [bits(got), bits(wanted)];
  // Most values are equal, and a comparison of whole buffers is a hundred times as fast.
  const same = gotBits.length === wantedBits.length && gotBits.every((each, i) => each === wantedBits[i]);
  if (!same) expect(gotBits, what).toEqual(wantedBits);
}
