// `kvasir bench borrow`: borrowed KV memory against one large instance, settlements on and off, and borrowing against moving.
import { join } from 'node:path';
import { Command } from 'commander';
import { z } from 'zod';
import { benchMove, benchSettle, benchSpeed } from '../../bench/borrow.ts';
import { hundredMillion, type LlamaShape, oneBillion, writeRandomLlama } from '../../bench/random-gguf.ts';
import { pageTokens } from '../../util/step.ts';
import type { BorrowOptions } from '../options/lending-rules.ts';
import { addFormFlags, readOptions } from '../options/options.ts';
import { temporaryFolder } from '../serve/exit-cleanup.ts';
import { openServing, type Serving } from '../serve/open-serving.ts';
import { printTable } from '../terminal/table.ts';
import { benchModelSchema, blockBytesOf, count, counts, list, progress } from './options.ts';

const partNames = ['speed', 'settle', 'move'] as const;

const schema = benchModelSchema.extend({
  pool: z.coerce.number().int().min(1024).default(2048),
  context: z.coerce.number().int().min(1024).default(7168),
  generate: z.coerce.number().int().min(2).default(32),
  repeats: count(3),
  bigThreads: count(2),
  instances: z.coerce.number().int().min(2).default(4),
  shares: counts(1, [20, 10, 5]),
  parts: list(z.enum(partNames), partNames),
});
type Options = z.infer<typeof schema>;

export function borrowCommand(): Command {
  return addFormFlags(new Command('borrow'), 'random weights in the shape of a model of 1B parameters')
    .option('--pool <tokens>', 'Give each instance a KV pool of this size (default: 2048)')
    .option('--instances <n>', 'Run this number of instances with one thread each (default: 4)')
    .option('--context <tokens>', 'End the request of `speed` at this context length (default: 7168)')
    .option('--generate <tokens>', 'Time this number of output tokens in `speed` (default: 32)')
    .option('--repeats <n>', 'Repeat `speed` this number of times (default: 3)')
    .option('--big-threads <n>', 'Give the large instance this number of threads (default: 2)')
    .option('--shares <list>', 'Output one token in `move` per this number of prompt tokens (default: 20,10,5)')
    .option('--parts <list>', 'Run these parts: speed, settle, move (default: all)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const options = readOptions(schema, flags);
      const folder = temporaryFolder('borrow');
      try {
        const report = await measure(folder.path, options);
        if (json === true) console.log(JSON.stringify(report));
        else
          for (const [name, rows] of Object.entries(report))
            printTable([rows].flat(), titles[name as keyof typeof titles]);
      } finally {
        folder.remove();
      }
    });
}

const titles = {
  speed: 'Decode with borrowed memory against one large instance',
  settle: 'Settlements on and off',
  move: 'Borrowing against moving to a larger instance',
};

const rules: BorrowOptions = {
  ...{ borrow: true, lendShare: 0.9, lowWater: 0.02, remoteAttentionShare: 0.3, lookAheadMs: 1000, leaseMs: 10_000 },
  ...{ borrowAhead: true, settle: true, settleMs: 100, settleMin: 256, remoteCacheMs: 0 },
};

/** Remote bytes per token do not depend on the size of the model, but transfer times do. */
async function measure(folder: string, { model, ...options }: Options) {
  const { parts } = options;
  const random = (name: string, shape: LlamaShape): string => {
    if (model !== undefined) return model;
    const path = join(folder, `${name}.gguf`);
    writeRandomLlama(path, shape);
    return path;
  };
  const big = parts.includes('speed') || parts.includes('move') ? random('big', oneBillion) : '';
  return {
    ...(parts.includes('speed') && { speed: await speed(big, options) }),
    ...(parts.includes('settle') && { settle: await settle(random('small', hundredMillion), options) }),
    ...(parts.includes('move') && { move: await move(big, options) }),
  };
}

interface PoolSettings {
  readonly instances?: number;
  readonly tokens: number;
  readonly threads?: number;
  readonly lending?: BorrowOptions | undefined;
  readonly context?: number;
  readonly roundRobin?: boolean;
}

async function open(path: string, { weights, inputs, kvType }: Options, pool: PoolSettings): Promise<Serving> {
  const { instances = 1, tokens, threads = 1, lending, context, roundRobin } = pool;
  const forms = { model: path, weights, inputs, kvType };
  const kvMemory = ((await blockBytesOf(forms)) / pageTokens) * tokens;
  const options = { ...forms, ...{ threads, context, kvMemory }, eviction: 'lru' } as const;
  const serving = await openServing(options, {
    ...{ queue: 64, lending, placement: roundRobin === true ? 'round-robin' : undefined },
    instances: Array.from({ length: instances }, () => ({ role: 'mixed', threads }) as const),
  });
  await serving.cluster.ready();
  return serving;
}

async function closingAll<T>(opened: readonly Serving[], use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } finally {
    await Promise.all(opened.map((serving) => serving.close()));
  }
}

async function speed(path: string, options: Options) {
  const { instances, pool, context, bigThreads } = options;
  const big = Math.ceil(context / 1024 + 1) * 1024;
  const alone = await open(path, options, { tokens: big, threads: bigThreads });
  const borrowing = await open(path, options, { instances, tokens: pool, lending: rules, context });
  const ports = { alone: alone.cluster, borrowing: borrowing.cluster, vocabSize: alone.model.vocabSize };
  return closingAll([alone, borrowing], () => benchSpeed({ ...options, ...ports, onProgress: progress }));
}

async function settle(path: string, options: Options) {
  const shared = { instances: 2, tokens: options.pool, roundRobin: true };
  const on = await open(path, options, { ...shared, lending: rules });
  const off = await open(path, options, { ...shared, lending: { ...rules, settle: false } });
  const ports = { on: on.cluster, off: off.cluster, vocabSize: on.model.vocabSize };
  return closingAll([on, off], () => benchSettle({ pool: options.pool, ...ports, onProgress: progress }));
}

async function move(path: string, options: Options) {
  const { pool, instances } = options;
  const borrowing = await open(path, options, { instances, tokens: pool, lending: rules });
  const small = await open(path, options, { tokens: pool });
  const openBigger = async () => {
    const bigger = await open(path, options, { tokens: 2 * pool });
    return { port: bigger.cluster, close: () => bigger.close() };
  };
  const ports = { borrowing: borrowing.cluster, small: small.cluster, vocabSize: small.model.vocabSize, openBigger };
  const shares = options.shares.map((part) => 1 / part);
  return closingAll([borrowing, small], () => benchMove({ ...ports, pool, shares, onProgress: progress }));
}
