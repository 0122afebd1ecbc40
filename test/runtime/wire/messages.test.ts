// Messages between processes: they round-trip, and invalid ones are refused with the name of the field.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { emptySnapshot } from '../../../src/runtime/snapshots/metric-snapshots.ts';
import { decode, encode } from '../../../src/runtime/wire/codec.ts';
import { decodeFrame, encodeFrame, type Frame } from '../../../src/runtime/wire/frames.ts';
import {
  type FetchWire,
  type HandOffWire,
  type InstanceCommand,
  type InstanceOutputs,
  readCommand,
  readFetch,
  readHandOff,
  readInstance,
  readOutputs,
  readPeer,
  readStatus,
} from '../../../src/runtime/wire/messages.ts';
import { commonVersion, describeVersions, statedVersions, wireVersion } from '../../../src/runtime/wire/versions.ts';
import { liveRequest } from '../threads/instances.ts';

const submit = {
  kind: 'submit',
  request: { ...liveRequest('r1', [1, 2, 3], 7), grammar: { kind: 'regex', text: 'a+' } },
  decodeAt: { name: 'b', incarnation: 3, session: 1 },
  prefix: { name: 'c', incarnation: 4, blocks: 5, patienceUs: 6.5 },
  offer: { name: 'd', incarnation: 6, blocks: 2 },
  group: {
    members: [
      { name: 'a', incarnation: 2, session: 1 },
      { name: 'e', incarnation: 5, session: 2 },
    ],
    layers: [2, 4],
    chunkTokens: 128,
    prefix: { blocks: 5, patienceUs: 7.5, of: { name: 'c', incarnation: 4 } },
  },
} as const satisfies InstanceCommand;
const logprobs = {
  logprobs: Float32Array.of(-0.5, Number.NEGATIVE_INFINITY),
  width: 1,
  topTokens: Int32Array.of(4, 5),
  topLogprobs: Float32Array.of(-0.25, -0.125),
};
const outputs: InstanceOutputs = {
  events: [
    ['r1', { kind: 'started', cachedTokens: 2 }],
    ['r1', { kind: 'tokens', tokens: Int32Array.of(6, 7), logprobs }],
    ['r2', { kind: 'failed', code: 'ENGINE_FAILED', message: 'Cannot: ü', retryAfterMs: undefined }],
  ],
  prefilled: [],
  released: [],
  steps: [{ kind: 'step', startedUs: 5, endedUs: 6, aborted: false, rows: [['r', 0, 3]] }],
  role: 'decode',
  pins: [
    ['p1', { kind: 'pinned', tokens: 64, untilUs: 5 }],
    ['p2', { kind: 'unpinned' }],
  ],
  kvEvents: [
    { incarnation: 1, number: 2, changes: 1, words: Uint32Array.of(1, 2, 3, 0xffff_ffff), stored: Uint8Array.of(1) },
  ],
  kvSnapshot: undefined,
};

describe('messages', () => {
  test('round-trip, also from a shared buffer', () => {
    expect(readCommand(encode(submit))).toEqual(submit);
    expect(readOutputs(encode(outputs))).toEqual(outputs);
    const bytes = encode(outputs);
    const shared = Buffer.alloc(bytes.length + 11);
    shared.set(bytes, 3);
    const read = readOutputs(shared.subarray(3, 3 + bytes.length));
    shared.fill(0xff);
    expect(read).toEqual(outputs);
  });

  test('the status of an instance with attention workers round-trips, and an invalid field of one is refused', () => {
    const traffic = { calls: 12, bytesOut: 5, bytesIn: 6, waitSeconds: 0.5, earlySeconds: 0.25, lateSeconds: 0.125 };
    const attentionWorkers = [
      { ready: true, losses: 1, ...traffic },
      { ready: false, losses: 0, sequences: 2, heldTokens: 9 },
    ];
    const status = { snapshot: { ...emptySnapshot, attentionWorkers }, number: 1, kvEventNumber: 2, requests: [] };
    expect(readStatus(encode(status))).toEqual(status);
    const wrong = {
      ...status,
      snapshot: { ...emptySnapshot, attentionWorkers: [{ ready: true, losses: -1 }] },
    };
    expect(() => readStatus(encode(wrong))).toThrow('attentionWorkers');
  });

  test('any plain data with arrays round-trips', () => {
    const array = fc.oneof(fc.uint8Array(), fc.int32Array(), fc.uint32Array(), fc.float32Array({ noNaN: true }));
    const value = fc.dictionary(
      fc.stringMatching(/^[a-z]+$/),
      fc.oneof(array, fc.string(), fc.integer(), fc.array(array)),
    );
    fc.assert(
      fc.property(value, (data) => {
        expect(decode(encode(data))).toEqual({ ...data });
      }),
    );
    expect(() => encode({ long: new BigInt64Array(1) })).toThrow('BigInt64Array');
  });

  const submitWith = (change: object) => ({ ...submit, request: { ...submit.request, ...change } });
  test.each([
    [submitWith({ prompt: Int32Array.of() }), 'request.prompt'],
    [submitWith({ prompt: Int32Array.of(-1) }), 'request.prompt'],
    [submitWith({ prompt: [1, 2] }), 'request.prompt'],
    [submitWith({ id: 'x'.repeat(300) }), 'request.id'],
    [submitWith({ maxTokens: -1 }), 'request.maxTokens'],
    [submitWith({ grammar: { kind: 'lark', text: '' } }), 'request.grammar.kind'],
    [submitWith({ grammar: { kind: 'regex', text: 'x'.repeat(65_537) } }), 'request.grammar.text'],
    [{ ...submit, decodeAt: { name: 'a.b', incarnation: 3, session: 1 } }, 'decodeAt.name'],
    [submitWith({ sampling: { ...submit.request.sampling, seed: [1] } }), 'request.sampling.seed'],
    [submitWith({ sampling: { ...submit.request.sampling, topLogprobs: 99 } }), 'request.sampling.topLogprobs'],
    [{ kind: 'format' }, 'kind'],
    [null, 'Cannot read a command'],
  ])('an invalid command is refused with the name of its field: %#', (wrong, field) => {
    expect(() => readCommand(encode(wrong))).toThrow(field);
  });

  test.each([
    [{ ...outputs, kvEvents: [{ ...outputs.kvEvents[0], changes: 2 }] }, 'kvEvents.0'],
    [{ ...outputs, kvSnapshot: { incarnation: 1, number: 1, blocks: 2, words: Uint32Array.of(1) } }, 'kvSnapshot'],
    [
      {
        ...outputs,
        events: [['r1', { kind: 'tokens', tokens: Int32Array.of(1), logprobs: { ...logprobs, width: 2 } }]],
      },
      'events.0',
    ],
    [{ ...outputs, events: [['r1', { kind: 'failed', code: 'UNKNOWN_CODE', message: '' }]] }, 'events.0.1.code'],
  ])('invalid outputs are refused with the name of the field: %#', (wrong, field) => {
    expect(() => readOutputs(encode(wrong))).toThrow(field);
  });

  const handOffs: readonly HandOffWire[] = [
    { kind: 'reserve', id: 'g.1.1/r1', gateway: { name: 'g', incarnation: 1, session: 2 }, request: submit.request },
    {
      kind: 'reserve',
      id: 'r2',
      gateway: { name: 'g', incarnation: 1, session: 2 },
      request: submit.request,
      reservation: 1,
    },
    { kind: 'reserved', id: 'g.1.1/r1', receiveBuffer: '127.0.0.1:9/1/0123456789abcdef/4' },
    { kind: 'reserved', id: 'g.1.1/r1', receiveBuffer: '127.0.0.1:9/1/0123456789abcdef/4', reservation: 1 },
    { kind: 'withdraw', id: 'r1', reservation: 0 },
    { kind: 'firstEvents', id: 'r1', events: [{ kind: 'tokens', tokens: Int32Array.of(6), logprobs }] },
    { kind: 'received', id: 'r1' },
    { kind: 'declined', id: 'r1' },
    { kind: 'release', id: 'r1' },
    { kind: 'unknown', id: 'r1' },
  ];
  test('prefix messages round-trip, and invalid ones are refused', () => {
    const chain = { blocks: 1, words: Uint32Array.of(1, 2, 3, 0xffff_ffff) };
    const messages: readonly FetchWire[] = [
      { kind: 'fetch', id: 'g.1.1/r1', chain, from: 0, receiveBuffer: '127.0.0.1:9/1/0123456789abcdef/4' },
      {
        ...{ kind: 'fetch', id: 'g.1.1/r2', chain, from: 0, receiveBuffer: '127.0.0.1:9/1/0123456789abcdef/4' },
        range: { index: 1, stages: 2, span: { from: 2, to: 6 } },
      },
      { kind: 'prefix', id: 'g.1.1/r1', blocks: 1 },
      { kind: 'missing', id: 'r1' },
      { kind: 'unwanted', id: 'r1' },
      { kind: 'prefixReceived', id: 'r1' },
    ];
    expect(messages.map((each) => readFetch(encode(each)))).toEqual(messages);
    expect(() => readFetch(encode({ ...messages[0], chain: { ...chain, blocks: 2 } }))).toThrow('chain');
    expect(() => readFetch(encode({ ...messages[0], from: 1 }))).toThrow('from');
    expect(() => readFetch(encode({ kind: 'fetch', id: 'r1' }))).toThrow('chain');
  });
  test('hand-off messages round-trip, and invalid ones are refused', () => {
    expect(handOffs.map((each) => readHandOff(encode(each)))).toEqual(handOffs);
    expect(() => readHandOff(encode({ ...handOffs[0], request: { ...submit.request, prompt: [] } }))).toThrow('prompt');
    expect(() => readHandOff(encode({ kind: 'reserved', id: 'r1' }))).toThrow('receiveBuffer');
    expect(() => readHandOff(encode({ kind: 'withdraw', id: 'r1' }))).toThrow('reservation');
    expect(() => readHandOff(encode({ kind: 'fetch', id: 'r1' }))).toThrow('kind');
  });

  test('messages of another wire version are refused', () => {
    expect(() => readInstance(encode({ version: 1, name: 'a', incarnation: 1, number: 1 }))).toThrow('version');
    const frame = encodeFrame({ kind: 'ended', session: 1 });
    frame[0] = wireVersion + 1;
    expect(() => decodeFrame(frame)).toThrow(
      `its wire version is ${wireVersion + 1}, that of this process ${wireVersion}`,
    );
  });

  test('processes use the highest version that both have, and refuse each other without one', () => {
    const own = { min: 17, max: 19 };
    expect(commonVersion(statedVersions({ min: 18, max: 30 }), own)).toBe(19);
    expect(commonVersion(statedVersions({ min: 2, max: 17 }), own)).toBe(17);
    expect(commonVersion({ version: 18 }, own)).toBe(18);
    for (const none of [
      { min: 20, max: 21 },
      { min: 1, max: 16 },
    ])
      expect(commonVersion(statedVersions(none), own)).toBeUndefined();
    expect(commonVersion({}, own)).toBeUndefined();
    expect(['17 to 19', '17', 'none']).toEqual([
      ...[statedVersions(own), { version: 17, versionMin: 17 }, {}].map(describeVersions),
    ]);
    const frame = encodeFrame({ kind: 'ended', session: 1 }, 18);
    expect(decodeFrame(frame, own)).toEqual({ kind: 'ended', session: 1 });
    expect(() => decodeFrame(frame, { min: 19, max: 20 })).toThrow('is 18, that of this process 19 to 20');
    // A newer release adds fields to its announcement.
    const newer = {
      ...statedVersions({ min: wireVersion, max: wireVersion + 1 }),
      name: 'a',
      incarnation: 1,
      number: 1,
    };
    expect(readPeer(encode({ ...newer, addition: true }))).toEqual(newer);
  });

  test('frames round-trip', () => {
    const bytes = Uint8Array.of(1, 2, 3);
    const frames: Frame[] = [
      { kind: 'part', session: 3, number: 4_000_000_000, last: true, bytes },
      { kind: 'part', session: 3, number: 1, last: false, bytes: new Uint8Array() },
      { kind: 'ack', session: 1, sent: 5, received: 6, bytes },
      { kind: 'nack', session: 2, from: 7 },
      { kind: 'ended', session: 9 },
    ];
    for (const frame of frames) expect(decodeFrame(encodeFrame(frame))).toEqual(frame);
  });

  test('arbitrary bytes decode to a message or throw an Error', () => {
    const good = encode(outputs);
    const mutated = fc.tuple(fc.nat(good.length - 1), fc.nat(255)).map(([at, byte]) => good.with(at, byte));
    const cut = fc.nat(good.length).map((length) => good.slice(0, length));
    fc.assert(
      fc.property(fc.oneof(fc.uint8Array({ maxLength: 64 }), mutated, cut), (bytes) => {
        for (const read of [readCommand, readOutputs, readHandOff, readFetch, decodeFrame]) {
          try {
            read(bytes);
          } catch (error) {
            expect(error).toBeInstanceOf(Error);
          }
        }
      }),
    );
  });
});
