// Frames of real engines: KV events of vLLM 0.32.0 and of SGLang's encoder, and the streams and metrics of vLLM.
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { EngineBlocks } from '../../../src/core/fleet/engine-blocks.ts';
import type { EngineKvBatch } from '../../../src/core/fleet/engine-kv-event.ts';
import { HashChain, rootDigest } from '../../../src/core/kvcache/block-hash.ts';
import { readLoads, readSamples } from '../../../src/runtime/fleet/engine-dialect.ts';
import { KvEventReader } from '../../../src/runtime/fleet/kv-event-frames.ts';
import { decodeMsgpack, encodeMsgpack } from '../../../src/runtime/fleet/msgpack.ts';
import { vllmDialect } from '../../../src/runtime/fleet/vllm-dialect.ts';
import { request } from '../../core/instance-world.ts';

const recorded = (name: string) =>
  JSON.parse(readFileSync(new URL(`../../data/fleet/${name}`, import.meta.url), 'utf8'));
const vllm = recorded('vllm-0.32.0.json');
const sglang = recorded('sglang-0.5.23.json');
const root = { modelFingerprint: '', weightForm: '', inputForm: '', kvType: '', rope: '' };
const hashKey = Uint32Array.of(1, 2, 3, 4);

function batchesOf(payloads: readonly string[]): EngineKvBatch[] {
  const reader = new KvEventReader();
  return payloads.map((payload) => reader.read(Buffer.from(payload, 'base64')));
}

function emptyBlocks(): EngineBlocks {
  return new EngineBlocks({ root, hashKey, incarnation: 1 });
}

/** Digests of the prompt, as placement computes them. */
function chainOf(tokens: readonly number[], salt = ''): string[] {
  const chain = new HashChain(rootDigest(root, salt, hashKey));
  chain.extend(Int32Array.from(tokens), tokens.length);
  return Array.from({ length: chain.blocks }, (_, i) => chain.words.slice(4 * i, 4 * i + 4).join());
}

function heldBy(blocks: EngineBlocks): string[] {
  const { words } = blocks.snapshot();
  return Array.from({ length: words.length / 4 }, (_, i) => words.slice(4 * i, 4 * i + 4).join());
}

describe('KV events of vLLM', () => {
  const replayed: readonly (readonly string[])[] = vllm.replayed.slice(0, -1);

  it('yield the digests that placement computes for the same prompt and salt', () => {
    const blocks = emptyBlocks();
    const batches = batchesOf(replayed.map((frames) => frames.at(-1) ?? ''));
    const beforeReset = batches.slice(0, -1);
    for (const { events } of beforeReset) blocks.apply(events);
    const held = heldBy(blocks);
    for (const salt of ['', 'tenant-a'])
      for (const digest of chainOf(vllm.prompt, salt)) expect(held).toContain(digest);
    expect([blocks.unknownParents, blocks.size, held.length]).toEqual([0, 7, 7]);
    blocks.apply(batches.at(-1)?.events ?? []);
    expect(heldBy(blocks)).toEqual(chainOf(vllm.prompt));
  });

  it('arrive over PUB as they are replayed', () => {
    const payloads = (frames: readonly (readonly string[])[]) => frames.map((each) => each.slice(-2));
    expect(payloads(vllm.published)).toEqual(payloads(replayed));
  });
});

describe('KV events of SGLang', () => {
  it('move blocks between media, and reset', () => {
    const blocks = emptyBlocks();
    const batches = batchesOf(sglang.batches);
    const sizes = batches.map(({ events }) =>
      events.slice(0, 2).map((event) => {
        blocks.apply([event]);
        return blocks.size;
      }),
    );
    expect(sizes).toEqual([[2], [2, 2], [3, 2]]);
    expect(batches.map(({ rank, atS }) => [rank, atS])).toEqual([
      [0, 1.5],
      [0, 2.5],
      [1, 3.5],
    ]);
    blocks.apply(batches[2].events);
    expect(blocks.size).toBe(0);
  });
});

describe('answers of vLLM', () => {
  it('stream token ids, log-probabilities and the reason of the end', () => {
    const read = (chunks: readonly string[], topLogprobs?: number) => {
      const plain = request('a', [1]);
      const reader = vllmDialect.reader({ ...plain, sampling: { ...plain.sampling, topLogprobs } });
      return chunks.filter((chunk) => chunk !== '[DONE]').flatMap((chunk) => reader.read(chunk) ?? []);
    };
    const pieces = read(vllm.stream);
    expect(pieces.flatMap(({ tokens }) => [...tokens])).toHaveLength(24);
    expect(pieces.map(({ finished }) => finished).filter((each) => each !== undefined)).toEqual(['length']);
    const [first] = read(vllm.streamWithLogprobs, 2);
    expect([...(first.logprobs?.topTokens ?? [])][0]).toBe(first.tokens[0]);
    expect(first.logprobs?.topLogprobs[0]).toBe(first.logprobs?.logprobs[0]);
  });

  it('state the load and the memory', () => {
    expect(readLoads(vllm.metrics, 1, vllmDialect.gauges)).toEqual([{ running: 0, waiting: 0, usage: 0 }]);
    const [{ labels }] = readSamples(vllm.metrics, new Set(['vllm:cache_config_info']));
    expect([labels.block_size, Number(labels.num_gpu_blocks) > 0]).toEqual(['32', true]);
  });
});

describe('decodeMsgpack', () => {
  it('reads what engines write, and 64-bit integers exactly', () => {
    const values = [
      ...[0, 127, 128, 255, 256, 65536, 2 ** 32, 2 ** 53 - 1, -1, -32, -33, -1000, 0.5],
      ...[2n ** 64n - 1n, 2n ** 63n, -(2n ** 63n), 'é'.repeat(40), 'x'.repeat(300), undefined],
      ...[Uint8Array.of(1, 2), Array.from({ length: 70_000 }, (_, i) => i % 7), { a: [{}], b: undefined }],
    ];
    const decoded = decodeMsgpack(encodeMsgpack(values)) as readonly unknown[];
    expect(decoded.map((each) => (each instanceof Uint8Array ? [...each] : each))).toEqual(
      values.map((each) => (each instanceof Uint8Array ? [...each] : each)),
    );
  });

  it('refuses bytes that are cut off, follow the value, claim a false length or nest too deep', () => {
    const bytes = encodeMsgpack(['abc', 2n ** 63n, { key: [1, 2] }]);
    for (let length = 0; length < bytes.length; length++)
      expect(() => decodeMsgpack(bytes.subarray(0, length))).toThrow('Cannot decode MessagePack');
    expect(() => decodeMsgpack(Buffer.concat([bytes, Buffer.of(0)]))).toThrow('bytes follow');
    expect(() => decodeMsgpack(Buffer.of(0xdd, 0xff, 0xff, 0xff, 0xff))).toThrow('cut off');
    expect(() => decodeMsgpack(Buffer.alloc(100, 0x91))).toThrow('nested');
  });
});
