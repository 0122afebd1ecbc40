// Remote keys: ranges of a sequence at remote attention servers of other pools, against the same keys all in one pool.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { HeadShape } from '../../src/graph/program.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { counterUniform } from '../../src/util/counter-random.ts';
import { pageTokens, type RemoteKeys, rangeTokens, remoteBlock } from '../../src/util/step.ts';
import { attentionScene, heldShape, kvTypes, type ScoreRules } from './backend-attention.ts';
import { type Connect, expectSameBits, play, resultOf, type Scene, type SceneServer, type Wanted } from './scene.ts';

const rangeBlocks = rangeTokens / pageTokens;

/** The location of each whole range of each sequence: undefined is local, else the index of a server. Ranges from that of the first row on are local. */
export type Placement = (sequence: number, range: number) => number | undefined;

interface GrowingServer {
  readonly pages: Float32Array[];
  readonly loans: { loan: number; blocks: number[]; pages: number[] }[];
}

/** The scene with some remote ranges: their local pages hold NaN, and their table entries are `remoteBlock`. */
export function lendOut(scene: Scene, servers: number, placement: Placement): Scene {
  const { step } = scene;
  const [group] = step.groups;
  const pages = (scene.pages ?? []).slice();
  const listed = group.blocks.slice();
  const growing = Array.from({ length: servers }, (): GrowingServer => ({ pages: [], loans: [] }));
  const remote: RemoteKeys[] = [];
  for (let sequence = 0; sequence + 1 < step.rowStart.length; sequence++) {
    const homeFrom = Math.floor(step.positions[step.rowStart[sequence]] / rangeTokens);
    for (let range = 0; range < homeFrom; range++) {
      const server = placement(sequence, range);
      if (server === undefined) continue;
      const at = group.blockStart[sequence] + range * rangeBlocks;
      const moved = moveOut(scene, growing[server], pages, listed.subarray(at, at + rangeBlocks));
      remote.push({ sequence, group: 0, firstBlock: range * rangeBlocks, server, ...moved });
    }
  }
  return {
    ...scene,
    pages,
    servers: growing.map(({ pages: held, loans }): SceneServer => {
      const lent = loans.map(({ loan, blocks, pages: of }) => ({
        loan,
        blocks: Int32Array.from(blocks),
        pages: Int32Array.from(of),
      }));
      return { pages: held.length === 0 ? pages.slice(0, 1) : held, loans: lent };
    }),
    step: { ...step, groups: [{ ...group, blocks: listed }], remote },
  };
}

/** Moves listed blocks to a server under a loan of their own. The creditor has its own block ids. */
function moveOut({ step }: Scene, server: GrowingServer, pages: Float32Array[], listed: Int32Array) {
  const [{ pageTable, layers }] = step.groups;
  const loan = { loan: server.loans.length + 1, blocks: [] as number[], pages: [] as number[] };
  const first = 3 + 7 * server.pages.length;
  for (const [i, block] of listed.entries()) {
    loan.blocks.push(first + (listed.length - i));
    for (let layer = 0; layer < layers; layer++) {
      const page = pageTable[block * layers + layer];
      loan.pages.push(server.pages.push(pages[page]) - 1);
      pages[page] = new Float32Array(pages[page].length).fill(Number.NaN);
    }
  }
  listed.fill(remoteBlock);
  server.loans.push(loan);
  return { loan: loan.loan, blocks: Int32Array.from(loan.blocks) };
}

const shapes: fc.Arbitrary<HeadShape> = fc
  .record({
    kvHeads: fc.integer({ min: 1, max: 2 }),
    group: fc.integer({ min: 1, max: 7 }),
    halfDim: fc.integer({ min: 1, max: 24 }),
  })
  .map(({ kvHeads, group, halfDim }) => ({ heads: kvHeads * group, kvHeads, headDim: 2 * halfDim }));
const sequenceLists = fc.array(
  fc.record({
    start: fc.oneof(fc.integer({ min: 0, max: 600 }), fc.integer({ min: 1500, max: 3400 })),
    rows: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 40 })),
  }),
  { minLength: 1, maxLength: 2 },
);
const rules = fc.constantFrom<readonly ['plain' | 'softcap' | 'slopes', number]>(
  ['plain', 1],
  ['softcap', 5],
  ['slopes', 0.03],
);

function rulesOf([kind, value]: readonly ['plain' | 'softcap' | 'slopes', number], heads: number): ScoreRules {
  if (kind === 'softcap') return { softcap: value };
  return kind === 'slopes' ? { slopes: Float32Array.from({ length: heads }, (_, head) => value / (head + 1)) } : {};
}

/** A random distribution from all local to none, in runs or scattered. */
function placementOf(seed: number, servers: number): Placement {
  const scattered = seed % 2 === 0;
  return (sequence, range) => {
    const place = Math.floor(counterUniform(seed, sequence, scattered ? range : range >> 2) * (servers + 1));
    return place === servers ? undefined : place;
  };
}

export function testRemoteKeys(backend: Backend, numRuns = 8, connect?: Connect): void {
  const playRemote = (scene: Scene, wanted: Wanted) => play(backend, scene, wanted, undefined, connect);
  test('attention and its statistics over ranges at servers have the bits of one pool', () => {
    fc.assert(
      fc.property(
        ...([shapes, kvTypes, sequenceLists, rules] as const),
        ...([fc.integer({ min: 1, max: 3 }), fc.boolean(), fc.nat()] as const),
        (given, kvType, sequences, rule, servers, stats, seed) => {
          const shape = heldShape(given, kvType);
          const whole = attentionScene(shape, kvType, sequences, seed, stats, rulesOf(rule, shape.heads));
          const read = { buffers: stats ? [1, 2, 3] : [1] };
          const wanted = play(backend, whole, read);
          const got = playRemote(lendOut(whole, servers, placementOf(seed, servers)), read);
          expect(resultOf(got).failedSequences).toEqual(new Int32Array(0));
          for (const [i, values] of wanted.buffers.entries())
            expectSameBits(got.buffers[i], values, ['o', 'max', 'sum'][i]);
        },
      ),
      { numRuns },
    );
  });

  test('a server that refuses the blocks fails only sequences with keys there', () => {
    const whole = attentionScene(
      { heads: 4, kvHeads: 2, headDim: 16 },
      'bf16',
      [
        { start: 1500, rows: 3 },
        { start: 1100, rows: 1 },
      ],
      5,
      false,
    );
    const wanted = play(backend, whole, { buffers: [1] }).buffers[0];
    const lent = lendOut(whole, 2, (sequence, range) => (range === 0 ? sequence : undefined));
    const [first, second] = lent.step.remote;
    for (const change of [{ loan: 9 }, { blocks: first.blocks.map((block) => block + 1) }]) {
      const step = { ...lent.step, remote: [{ ...first, ...change }, second] };
      const got = playRemote({ ...lent, step }, { buffers: [1] });
      expect(resultOf(got).failedSequences).toEqual(Int32Array.of(0));
      expectSameBits(got.buffers[0].slice(3 * 64), wanted.slice(3 * 64), 'the other sequence');
    }
  });

  test('refuses remote keys unless they are whole ranges before the first row, in order, and not local', () => {
    const whole = attentionScene(
      { heads: 2, kvHeads: 2, headDim: 8 },
      'f32',
      [{ start: 2 * rangeTokens + 76, rows: 1 }],
      5,
      false,
    );
    const lent = lendOut(whole, 1, () => 0);
    const [first, second] = lent.step.remote;
    const refused: readonly (readonly [readonly RemoteKeys[], RegExp])[] = [
      [[{ ...first, sequence: 1 }, second], /remote\[0\] names sequence 1/],
      [[{ ...first, group: 1 }, second], /remote\[0\] names layer group 1/],
      [[{ ...first, firstBlock: rangeBlocks / 2 }, second], /remote\[0\] holds no whole ranges/],
      [[first, { ...second, blocks: second.blocks.subarray(1) }], /no whole ranges|not local/],
      [
        [first, { ...second, firstBlock: 2 * rangeBlocks }],
        new RegExp(`remote\\[1\\] reaches block ${3 * rangeBlocks}`),
      ],
      [[second, first], /remote\[1\] is not in order/],
      [[first], /not local/],
    ];
    for (const [remote, message] of refused)
      expect(() => playRemote({ ...lent, step: { ...lent.step, remote } }, {})).toThrow(message);
    const home = { ...lent.step, groups: whole.step.groups };
    expect(() => playRemote({ ...lent, step: home }, {})).toThrow(/ local/);
  });
}
