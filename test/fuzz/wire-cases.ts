// Mutated messages between processes: each reader returns a message that it would write again, or refuses it in one short line.
import { ReliableChannel } from '../../src/core/membership/reliable-channel.ts';
import { readAgreement, readAnyAgreement } from '../../src/runtime/wire/agreement-record.ts';
import { encode } from '../../src/runtime/wire/codec.ts';
import { readForward, readForwarder } from '../../src/runtime/wire/forward-messages.ts';
import { decodeFrame, encodeFrame, type Frame } from '../../src/runtime/wire/frames.ts';
import {
  readLease,
  readLenderAnnouncement,
  readLenderRecord,
  readLendingWire,
} from '../../src/runtime/wire/lending-messages.ts';
import {
  readAnyAnnouncement,
  readCommand,
  readDeparture,
  readFetch,
  readFetcher,
  readGateway,
  readHandOff,
  readInstance,
  readOutputs,
  readPeer,
  readStatus,
} from '../../src/runtime/wire/messages.ts';
import { readPipelineWire } from '../../src/runtime/wire/pipeline-messages.ts';
import { readAnyHead, readBlocks, readHead } from '../../src/runtime/wire/stored-snapshot.ts';
import { wireVersion } from '../../src/runtime/wire/versions.ts';
import { mutateBytes, spellMutated } from './mutate.ts';
import { MutationRandom } from './mutation-random.ts';
import type { Json } from './seeds.ts';
import type { Fault, FuzzTarget } from './target.ts';

/** A message is refused in a line of at most this length, since the line is logged. */
const lineMax = 600;
const caseMsMax = 5_000;

const member = { version: wireVersion, name: 'a-1', incarnation: 3, number: 4 };
const root = { modelFingerprint: 'f', weightForm: 'native', inputForm: 'bf16', kvType: 'bf16', rope: 'r' };
const session = { name: 'b', incarnation: 3, session: 1 };
const receiveBuffer = '127.0.0.1:9/1/0123456789abcdef/4';
const logprobs = {
  logprobs: Float32Array.of(-0.5, -1),
  width: 1,
  topTokens: Int32Array.of(4, 5),
  topLogprobs: Float32Array.of(-0.25, -0.125),
};
const sampling = {
  ...{ temperature: 0.8, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, frequencyPenalty: 0, presencePenalty: 0 },
  ...{ seed: [3, 7], topLogprobs: 2, logitBias: [], promptLogprobs: false },
};
const request = {
  ...{ id: 'r1', prompt: Int32Array.of(1, 2, 3), maxTokens: 7, sampling, stopTokenIds: [2], priority: 0, salt: '' },
  grammar: { kind: 'regex', text: 'a+' },
};
const chain = { blocks: 1, words: Uint32Array.of(1, 2, 3, 0xffff_ffff) };

/** Messages near those that processes send; some are refused for a field, which mutations need not repair. */
export const wireSeeds: readonly unknown[] = [
  {
    ...{
      kind: 'submit',
      request,
      decodeAt: session,
      prefix: { name: 'c', incarnation: 4, blocks: 5, patienceUs: 6.5 },
    },
    group: { members: [session, { ...session, name: 'e' }], layers: [2, 4], chunkTokens: 128 },
  },
  { kind: 'cancel', id: 'r1', interrupt: true },
  { kind: 'pin', id: 'p1', request, ttlUs: 5e6 },
  { kind: 'role', role: 'prefill' },
  {
    events: [
      ['r1', { kind: 'started', cachedTokens: 2 }],
      ['r1', { kind: 'tokens', tokens: Int32Array.of(6, 7), logprobs }],
      ['r2', { kind: 'failed', code: 'ENGINE_FAILED', message: 'Cannot: ü' }],
    ],
    ...{ prefilled: ['r1'], released: [['r1', 'why']], role: 'decode' },
    steps: [{ kind: 'step', startedUs: 5, endedUs: 6, aborted: false, rows: [['r', 0, 3]] }],
    pins: [['p1', { kind: 'pinned', tokens: 64, untilUs: 5 }]],
    kvEvents: [{ incarnation: 1, number: 2, changes: 1, words: chain.words, stored: Uint8Array.of(1) }],
    kvSnapshot: { incarnation: 1, number: 1, blocks: 1, words: chain.words },
  },
  { kind: 'reserve', id: 'g.1.1/r1', gateway: session, request, senders: [{ name: 'a', incarnation: 1, id: 'x' }] },
  { kind: 'reserve', id: 'r1', gateway: session, request, sendersRequest: true, reservation: 1 },
  { kind: 'reserved', id: 'g.1.1/r1', receiveBuffer, reservation: 1 },
  { kind: 'firstEvents', id: 'r1', events: [{ kind: 'tokens', tokens: Int32Array.of(6), logprobs }] },
  { kind: 'fetch', id: 'r1', chain, from: 0, receiveBuffer, range: { index: 1, stages: 2, span: { from: 2, to: 6 } } },
  { kind: 'offer', id: 'r1', chain },
  { kind: 'joinPipeline', gateway: { name: 'g', incarnation: 1 }, request, index: 1, decodeAt: session },
  { kind: 'activations', number: 4, id: 'r1', chunk: { from: 0, tokens: 9, cachedTokens: 0 }, receiveBuffer },
  { kind: 'lending', envelope: { epoch: 1, from: 0, message: { kind: 'borrow', blocks: 4 } } },
  { kind: 'copy', move: 1, blocks: [1, 2, 3], receiveBuffer },
  { ...member, instance: 3, identity: 'x', lendableBlocks: 9, attentionAddress: '127.0.0.1:90' },
  { places: [{ name: 'a', life: 3 }] },
  { holder: 'a', epoch: 3 },
  {
    ...member,
    role: 'mixed',
    root,
    identity: 'i',
    canSwitchRole: true,
    capacityTokens: 512,
    isa: 'avx2',
    pages: 'h:1',
  },
  { ...member, traces: true },
  { ...member, isStore: false },
  { ...member, key: '0123abcd' },
  { kind: 'request', call: 1, method: 'GET', path: '/v1/files', owner: 'o', requestId: 'r', body: Uint8Array.of(1) },
  { kind: 'response', call: 1, status: 200, headers: [['allow', 'GET']], bytes: Uint8Array.of(1), last: false },
  { kind: 'piece', call: 1, bytes: Uint8Array.of(1, 2), last: true },
  { name: 'a', incarnation: 4 },
  { version: wireVersion, life: 1, number: 2, side: 1, sums: ['a', 'b'] },
  { incarnation: 1, number: 1, blocks: 1, words: chain.words, onSsd: 1 },
  { version: wireVersion, hashKey: [1, 2, 3, 4], modelFingerprint: 'f', root, pages: { mark: 'm' } },
];

export const wireReaders = {
  ...{ readCommand, readOutputs, readStatus, readGateway, readInstance, readPeer, readFetcher, readFetch, readHandOff },
  ...{ readAnyAnnouncement, readDeparture, readLendingWire, readLenderAnnouncement, readLenderRecord, readLease },
  ...{ readAgreement, readAnyAgreement, readHead, readAnyHead, readBlocks, readPipelineWire },
  ...{ readForward, readForwarder },
};
type ReaderName = keyof typeof wireReaders;
const allReaders = Object.keys(wireReaders) as ReaderName[];
/** Their result has other names than the stored form. */
const renames = new Set<string>(['readLenderRecord', 'readHead', 'readAnyHead', 'readAgreement', 'readAnyAgreement']);

const frames: readonly Frame[] = [
  { kind: 'part', session: 3, number: 1, last: true, bytes: Uint8Array.of(1, 2, 3) },
  { kind: 'part', session: 3, number: 2, last: false, bytes: new Uint8Array(40) },
  { kind: 'ack', session: 1, sent: 5, received: 0, bytes: Uint8Array.of(1, 2, 3) },
  { kind: 'nack', session: 2, from: 1 },
  { kind: 'ended', session: 9 },
];

export class WireCases implements FuzzTarget {
  readonly #seed: number;
  readonly outcomes: Record<string, number> = { read: 0, refused: 0, frames: 0, refusedFrames: 0 };

  /** (seeds): the readers that accept each. */
  readonly #own: readonly (readonly ReaderName[])[];

  constructor(seed: number) {
    this.#seed = seed;
    this.#own = wireSeeds.map((each) => this.#read(encode(each), allReaders));
  }

  checkSeeds(): Fault[] {
    const read = new Set<string>(this.#own.flat());
    const never = Object.keys(wireReaders).filter(
      (name) => name !== 'readStatus' && name !== 'readLendingWire' && !read.has(name),
    );
    return never.map((name) => ({ index: -1, seedName: name, why: 'no unchanged message is read' }));
  }

  run(index: number): Fault | undefined {
    const prng = new MutationRandom(Math.imul(this.#seed, 0x01000193) + index);
    const seedName = prng.below(8) === 0 ? 'frames' : 'messages';
    try {
      const startMs = performance.now();
      if (seedName === 'frames') this.#runFrames(prng);
      else {
        const which = prng.below(wireSeeds.length);
        // Rarely a reader receives a message of another kind.
        const names = prng.below(10) === 0 ? allReaders : (this.#own[which] ?? []);
        this.#read(mutateMessage(encode(wireSeeds[which]), prng), names);
      }
      const ms = performance.now() - startMs;
      if (ms > caseMsMax) throw new Error(`it took ${Math.round(ms)} ms`);
      return undefined;
    } catch (error) {
      return { index, seedName, why: error instanceof Error ? (error.stack ?? error.message) : String(error) };
    }
  }

  close(): void {}

  /** Those of the readers that accept the bytes. */
  #read(bytes: Uint8Array, names: readonly ReaderName[]): ReaderName[] {
    return names.filter((name) => {
      const read = wireReaders[name];
      let message: unknown;
      try {
        message = read(bytes);
      } catch (error) {
        checkRefusal(name, error);
        this.outcomes.refused++;
        return false;
      }
      this.outcomes.read++;
      const written = encode(message);
      if (!renames.has(name) && !Buffer.from(encode(read(written))).equals(written))
        throw new Error(
          `${name} reads another message from what it has read: ${JSON.stringify(message).slice(0, 200)}`,
        );
      return true;
    });
  }

  /** A channel receives frames in any order. It delivers no more bytes than it has received. */
  #runFrames(prng: MutationRandom): void {
    const channel = new ReliableChannel({ partBytesMax: 64, messageBytesMax: 1024, keptBytesMax: 4096 });
    let receivedBytes = 0;
    let deliveredBytes = 0;
    for (let n = prng.below(40); n > 0; n--) {
      if (prng.below(4) === 0) channel.step({ kind: 'send', message: new Uint8Array(prng.below(200)) });
      const payload = mutateFrame(prng);
      let frame: Frame;
      try {
        frame = decodeFrame(payload);
      } catch (error) {
        checkRefusal('decodeFrame', error);
        this.outcomes.refusedFrames++;
        continue;
      }
      this.outcomes.frames++;
      if (frame.kind === 'ended') continue;
      if (frame.kind === 'part') receivedBytes += frame.bytes.length;
      const event = frame.kind === 'part' ? ({ kind: 'part', part: frame } as const) : frame;
      for (const effect of channel.step(event)) if (effect.kind === 'deliver') deliveredBytes += effect.message.length;
    }
    if (deliveredBytes > receivedBytes)
      throw new Error(`${deliveredBytes} bytes were delivered, ${receivedBytes} received`);
  }
}

function checkRefusal(name: string, error: unknown): void {
  if (!(error instanceof Error)) throw new Error(`${name} threw ${String(error)}`);
  if (error.message.length > lineMax || /[\n\r]/.test(error.message))
    throw new Error(`${name} refuses in ${error.message.length} characters: ${error.message.slice(0, 200)}`);
}

function mutateFrame(prng: MutationRandom): Uint8Array {
  const frame = prng.pick(frames);
  const numbered = frame.kind === 'part' ? { ...frame, number: 1 + prng.below(6), last: prng.below(2) === 0 } : frame;
  const bytes = encodeFrame(numbered);
  return prng.below(3) === 0 ? mutateBytes(bytes, prng, 16) : bytes;
}

/** Changes the fields of the head in most cases, else any byte. */
function mutateMessage(bytes: Uint8Array, prng: MutationRandom): Uint8Array {
  const headBytes = new DataView(bytes.buffer).getUint32(0, true);
  if (prng.below(4) === 0) return mutateBytes(bytes, prng, 4 + headBytes);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headBytes))) as Json;
  const text = new TextEncoder().encode(spellMutated(head, prng));
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, text.byteLength, true);
  return new Uint8Array(Buffer.concat([length, text, bytes.subarray(4 + headBytes)]));
}
