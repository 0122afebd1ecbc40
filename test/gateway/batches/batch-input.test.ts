// The lines of batch inputs: bounded memory, their order, and what a failed read or a removed file leaves.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { BatchInput, type HeldLine, heldBytesMax } from '../../../src/gateway/batches/batch-input.ts';
import { checkInput } from '../../../src/gateway/batches/batch-lines.ts';
import { FileStore } from '../../../src/gateway/batches/file-store.ts';
import { GatewayIds } from '../../../src/gateway/forwarding/gateway-ids.ts';
import { FileBytes, MemoryBytes, type StoredBytes } from '../../../src/gateway/http/stored-bytes.ts';
import { anyCaller } from '../../../src/gateway/keys/caller.ts';

const url = '/v1/completions';
const lineOf = (id: string, prompt: string) =>
  JSON.stringify({ custom_id: id, method: 'POST', url, body: { model: 'bytes', prompt } });
const neverAgain = async () => false;

/** Counts what is read. */
class CountedBytes implements StoredBytes {
  readonly #bytes: StoredBytes;
  readBytes = 0;

  constructor(bytes: StoredBytes) {
    this.#bytes = bytes;
  }

  get length(): number {
    return this.#bytes.length;
  }

  read(start: number, end: number) {
    this.readBytes += end - start;
    return this.#bytes.read(start, end);
  }
}

async function all(input: BatchInput): Promise<string[]> {
  const ids: string[] = [];
  for (;;) {
    const line = await input.next(neverAgain);
    if (line === undefined) return ids;
    ids.push(line.customId);
    line.release();
  }
}

it('150 batches of one file have at most 1 MiB and a line each in memory, and read on as lines end', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-input-'));
  const path = join(folder, 'jobs.jsonl');
  const line = lineOf('job', 'x'.repeat(200_000));
  writeFileSync(path, Array.from({ length: 16 }, () => `${line}\n`).join(''));
  const bytesOf = new FileBytes(path, 16 * (line.length + 1));
  const piece = 64 << 10;
  const batches = Array.from({ length: 150 }, () => {
    const bytes = new CountedBytes(bytesOf);
    return { bytes, input: new BatchInput(bytes), lines: [] as HeldLine[] };
  });
  for (const { input, lines } of batches) {
    // As many as requests of a batch run at once: the last calls wait.
    const calls = Array.from({ length: 16 }, async () => {
      const next = await input.next(neverAgain);
      if (next !== undefined) lines.push(next);
    });
    void Promise.all(calls);
    while (input.heldBytes < heldBytesMax) await new Promise((resolve) => setImmediate(resolve));
  }
  for (let i = 0; i < 20; i++) await new Promise((resolve) => setImmediate(resolve));
  for (const { bytes, input, lines } of batches) {
    expect([lines.length, input.heldBytes]).toEqual([6, 6 * (line.length + 1)]);
    expect(bytes.readBytes).toBeLessThanOrEqual(heldBytesMax + line.length + piece);
  }
  const [first] = batches;
  first?.lines[0]?.release();
  while (first?.lines.length === 6) await new Promise((resolve) => setImmediate(resolve));
  expect(first?.lines.length).toBe(7);
  rmSync(folder, { recursive: true });
});

it('lines keep their order and text over the borders of pieces, without empty and done ones', async () => {
  const lines = Array.from({ length: 300 }, (_, i) => lineOf(`job-${i}`, 'ü€😀'.repeat(i * 7)));
  const bytes = new MemoryBytes(Buffer.from(`\n${lines.join('\r\n\n')}`));
  expect(bytes.length).toBeGreaterThan(20 * (64 << 10));
  expect(await checkInput(bytes, url)).toBe(300);
  const bodies: unknown[] = [];
  const input = new BatchInput(bytes);
  for (let line = await input.next(neverAgain); line !== undefined; line = await input.next(neverAgain)) {
    bodies.push(line.body);
    line.release();
  }
  expect(bodies).toEqual(lines.map((line) => JSON.parse(line).body));
  expect(input.heldBytes).toBe(0);
  const left = await all(new BatchInput(bytes, ['job-0', 'job-150', 'job-299']));
  expect(left).toEqual(Array.from({ length: 300 }, (_, i) => `job-${i}`).filter((_, i) => i % 150 !== 0 && i !== 299));
});

it('after a failed read the input goes on at the same line, and ends if it is not read again', async () => {
  const lines = Array.from({ length: 2_000 }, (_, i) => lineOf(`job-${i}`, 'x'.repeat(50)));
  const memory = new MemoryBytes(Buffer.from(lines.join('\n')));
  const ids = lines.map((line) => JSON.parse(line).custom_id);
  let reads = 0;
  const failing: StoredBytes = {
    length: memory.length,
    read: (start, end) => (++reads % 2 === 0 ? Promise.reject(new Error(`EIO ${reads}`)) : memory.read(start, end)),
  };
  const input = new BatchInput(failing);
  const errors: unknown[] = [];
  const again = async (error: unknown) => errors.push(error) > 0;
  const found: string[] = [];
  for (let line = await input.next(again); line !== undefined; line = await input.next(again)) {
    found.push(line.customId);
    line.release();
  }
  expect(found).toEqual(ids);
  expect(errors.length).toBeGreaterThan(1);
  reads = 1;
  expect(await new BatchInput(failing).next(neverAgain)).toBeUndefined();
});

it('a line that is spoilt when it is read is read again, and not left out', async () => {
  const text = [1, 2, 3].map((i) => lineOf(`job-${i}`, 'x')).join('\n');
  const [whole, spoilt] = [text, text.replace('job-2"', 'job-2')].map((each) => new MemoryBytes(Buffer.from(each)));
  let reads = 0;
  const bytes: StoredBytes = {
    length: spoilt.length,
    read: (start, end) => (reads++ === 0 ? spoilt.read(start, end) : whole.read(start, Math.min(end, whole.length))),
  };
  const input = new BatchInput(bytes);
  const errors: unknown[] = [];
  const again = async (error: unknown) => errors.push(error) > 0;
  expect((await input.next(again))?.customId).toBe('job-1');
  expect((await input.next(again))?.customId).toBe('job-2');
  expect(errors).toHaveLength(1);
});

it('a removed file takes capacity until its last batch has ended', async () => {
  const files = new FileStore(1000, new GatewayIds(undefined));
  const add = (length: number) => files.add(anyCaller, { filename: 'f', bytes: new Uint8Array(length) });
  const input = await add(600);
  for (const batch of ['one', 'two']) files.reserve(batch, 0, input);
  await files.remove(input.id, anyCaller.name);
  files.release('one');
  await expect(add(500)).rejects.toMatchObject({ status: 429, message: expect.stringContaining('1100 of 1000 bytes') });
  files.release('two');
  expect((await add(500)).bytes.length).toBe(500);
});
