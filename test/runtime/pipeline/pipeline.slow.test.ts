// Pipeline prefill: groups of instances that each compute a range of the layers give the bits of one instance and leak no pages.
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { InstanceSettings } from '../../../src/cli/serve/worker-settings.ts';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { loadNative } from '../../../src/kernel/native/native.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { openModel } from '../../../src/weights/open-model.ts';
import {
  type Answer,
  admitAll,
  answerOf,
  type CalibratedCluster,
  cancelled,
  liveCluster,
  livePrompt,
  liveRequest,
  liveSettings,
} from '../threads/instances.ts';

const native = loadNative();
const open: LiveCluster[] = [];
const closeAll = () => Promise.all(open.splice(0).map((cluster) => cluster.close()));
afterEach(closeAll);

type Own = Partial<InstanceSettings>;

async function started(
  instances: readonly (Own & { readonly role?: InstanceRole })[],
  members: number | undefined,
  transport: 'memory' | 'tcp' = 'memory',
): Promise<CalibratedCluster> {
  const pipeline = members === undefined ? undefined : { members, tokensOver: 300 };
  const long = instances.map((instance) => ({ contextTokens: 2048, ...instance }));
  const cluster = liveCluster(long, transport, admitAll, undefined, false, pipeline);
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

const group = (prefills: number, own: Own = {}) => [
  ...Array.from({ length: prefills }, () => ({ role: 'prefill', ...own }) as const),
  { role: 'decode', ...own } as const,
];

/** Resolves when no instance has requests and no request holds pages, within the time-out of the test. */
async function atRest(cluster: LiveCluster): Promise<void> {
  const busy = () => cluster.instances().some(({ waiting, running, pages }) => waiting + running + pages.used > 0);
  while (busy()) await pause(2);
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

function hiddenSizeOf(model: string): number {
  const files = openModel(model);
  try {
    return files.config.hiddenSize;
  } finally {
    files.close();
  }
}

/** The same requests under other ids and cache salts: an instance answers each id once. */
const again = (name: string, requests: readonly GenerationRequest[]) =>
  requests.map((request) => ({ ...request, id: `${name} ${request.id}`, salt: name }));
const chunksOf = (cluster: LiveCluster) => cluster.instances().map(({ pipelineChunks = [] }) => pipelineChunks);
const ran = (cluster: LiveCluster, place: number) =>
  chunksOf(cluster).reduce((sum, chunks) => sum + (chunks[place] ?? 0), 0);
const bare = (answer: Answer | undefined) => [answer?.tokens, answer?.logprobs, answer?.end];

describe.skipIf(native === undefined)('groups of instances', () => {
  const requests = [1000, 385, 640].map((length, kind) => liveRequest(`r${length}`, livePrompt(kind, length), 6));
  /** One instance, and a group of two. */
  let alone: LiveCluster;
  let pair: LiveCluster;
  beforeAll(async () => {
    [alone, pair] = await Promise.all([started([{}], undefined), started(group(2), 2)]);
    open.length = 0;
  });
  afterAll(() => Promise.all([alone.close(), pair.close()]));

  it.each([
    { inputs: 'bf16', members: 2 },
    { inputs: 'f32', members: 3 },
  ] as const)(
    'compute prompts with the bits of one instance: $inputs, $members members',
    async ({ inputs, members }) => {
      const isShared = inputs === 'bf16';
      const [one, cluster] = await Promise.all([
        isShared ? alone : started([{ inputs }], undefined),
        isShared ? pair : started(group(members, { inputs }), members),
      ]);
      for (const request of requests) {
        const [expected, answer] = await Promise.all([answerOf(one, request), answerOf(cluster, request)]);
        expect(bare(answer)).toEqual(bare(expected));
      }
      for (let place = 0; place < members; place++) expect(ran(cluster, place)).toBeGreaterThan(requests.length);
      await atRest(cluster);
      // The arrival of the last chunks is reported without a further request.
      const links = () => cluster.instances().flatMap(({ activationLinks = [] }) => activationLinks);
      while (links().some(({ backlogBytes }) => backlogBytes > 0)) await pause(2);
      expect(links()).not.toHaveLength(0);
    },
  );

  it('continue after the output of an earlier attempt', async () => {
    const request = liveRequest('attempt', livePrompt(40, 700), 6);
    const { tokens, end } = await answerOf(alone, request);
    const before = ran(pair, 1);
    const resumed = { tokens: Int32Array.from(tokens.slice(0, 3)), scored: 0 };
    const answer = await answerOf(pair, { ...request, id: 'next attempt', resumed });
    expect([answer.tokens, answer.end]).toEqual([tokens.slice(3), end]);
    expect(ran(pair, 1)).toBeGreaterThan(before);
    await atRest(pair);
  });

  it('start behind their cached prefix, and fetch their layers of a longer one; later requests reuse the prefix at the decode instance', async () => {
    const head = livePrompt(9, 288);
    await answerOf(pair, liveRequest('head', [...head, 1], 2));
    const bytes = () =>
      pair
        .instances()
        .reduce((sum, { activationLinks = [] }) => sum + activationLinks.reduce((all, link) => all + link.bytes, 0), 0);
    let reports = 0;
    /** Short requests to both members: an instance may report the bytes of the last chunk after the answer. */
    const reportCounters = async () => {
      const short = Array.from({ length: 4 }, () => liveRequest(`report ${++reports}`, livePrompt(20 + reports, 8), 1));
      await Promise.all(short.map((request) => answerOf(pair, request)));
      await atRest(pair);
    };
    const activationBytes = Float32Array.BYTES_PER_ELEMENT * hiddenSizeOf(liveSettings.model ?? '');
    const rowBytes: number[] = [];
    /** Repeats with other prompts until the prefix arrives within the patience: the machine may be busy. Returns the prompt. */
    const computeBehind = async (name: string, start: readonly number[], more: number, together: boolean) => {
      const whole = Math.floor(start.length / 32) * 32;
      for (let kind = 10; ; kind++) {
        const request = liveRequest(`${name} ${kind}`, [...start, ...livePrompt(kind, more)], 6);
        await reportCounters();
        const before = { chunks: ran(pair, 1), bytes: bytes() };
        const answer = await answerOf(pair, request);
        expect(bare(answer)).toEqual(bare(await answerOf(alone, request)));
        await atRest(pair);
        const group = pair.requestTrace(request.id)?.placements.at(-1)?.group;
        if (answer.cachedTokens !== whole || (group !== undefined) !== together) continue;
        const rows = request.prompt.length - whole;
        if (together) while (bytes() - before.bytes < rows * activationBytes) await reportCounters();
        expect(ran(pair, 1) > before.chunks).toBe(together);
        rowBytes.push((bytes() - before.bytes) / rows);
        return [...request.prompt];
      }
    };
    const first = await computeBehind('first', head, 500, true);
    const second = await computeBehind('second', first, 400, true);
    await computeBehind('third', second, 100, false);
    // The activations of every row that a group computes are sent once, as float32 values.
    expect(rowBytes).toEqual([activationBytes, activationBytes, 0]);
  });

  it('share the layers by compute speed, with the bits of one instance', async () => {
    const [fast, slow, decode] = [{ role: 'prefill' }, { role: 'prefill', threads: 2 }, { role: 'decode' }] as const;
    const cluster = await started([slow, fast, decode], 2);
    cluster.calibrate(0, 400);
    cluster.calibrate(1, 200);
    const request = liveRequest('unequal', livePrompt(3, 1000), 4);
    const used: [Set<number>, Set<number>] = [new Set(), new Set()];
    const watch = setInterval(() => {
      for (const [i, seen] of used.entries()) seen.add(cluster.instances()[i]?.pages.used ?? 0);
    }, 1);
    expect(bare(await answerOf(cluster, request))).toEqual(bare(await answerOf(alone, request)));
    clearInterval(watch);
    // Both are free: the faster one is the first member, with 4 of the 6 layers. Of 32 blocks its share is 22 whole blocks, the other's is 11.
    expect(chunksOf(cluster).map((chunks) => chunks.length)).toEqual([2, 1, 0]);
    expect([...used[0]].filter((pages) => pages !== 0 && pages !== 11 * 6)).toEqual([]);
    expect([...used[1]].filter((pages) => pages !== 0 && pages !== 22 * 6)).toEqual([]);
    await atRest(cluster);
  });

  it('end a request whose first token is its last', async () => {
    const before = ran(pair, 1);
    for (const request of again('first', requests)) {
      const { tokens } = await answerOf(alone, request);
      const { tokens: received, end } = await answerOf(pair, {
        ...request,
        stopTokenIds: tokens.slice(0, 1),
      });
      expect([received, end]).toEqual([tokens.slice(0, 1), { kind: 'finished', reason: 'stop' }]);
    }
    expect(ran(pair, 1)).toBeGreaterThan(before + requests.length);
    await atRest(pair);
  });

  it('score prompts with the bits of one instance, also the rest of an earlier attempt, and with a first token that is the last', async () => {
    const scored = again('scored', requests.slice(1)).map((request) => ({
      ...request,
      sampling: { ...request.sampling, promptLogprobs: true },
    }));
    const expected = await Promise.all(scored.map((request) => answerOf(alone, request)));
    const before = ran(pair, 1);
    // One after another: beside another prompt a group may be predicted to be slower than one instance.
    for (const [i, request] of scored.entries()) expect(bare(await answerOf(pair, request))).toEqual(bare(expected[i]));
    // No chunk has more scored rows than a step of one instance.
    const chunks = scored.reduce((sum, { prompt }) => sum + Math.ceil(prompt.length / 64), 0);
    expect(ran(pair, 1) - before).toBe(chunks);
    const [first] = scored;
    const [whole] = expected;
    if (first === undefined || whole === undefined) throw new Error('no prompt is scored');
    const next = { ...first, id: 'scored next', salt: 'next' };
    const rest = await answerOf(pair, {
      ...next,
      resumed: { tokens: Int32Array.from(whole.tokens.slice(0, 2)), scored: 200 },
    });
    expect([rest.tokens, rest.end]).toEqual([whole.tokens.slice(2), whole.end]);
    const outputs = whole.logprobs.length - first.prompt.length + 1;
    expect(rest.logprobs.slice(0, first.prompt.length - 1 - 200)).toEqual(whole.logprobs.slice(200, -outputs));
    const stopTokenIds = whole.tokens.slice(0, 1);
    const ended = await answerOf(pair, { ...first, id: 'scored end', salt: 'end', stopTokenIds });
    expect([ended.tokens, ended.end]).toEqual([stopTokenIds, { kind: 'finished', reason: 'stop' }]);
    expect(ended.logprobs.slice(0, first.prompt.length - 1)).toEqual(whole.logprobs.slice(0, first.prompt.length - 1));
    await atRest(pair);
  });

  it.each(['memory', 'tcp'] as const)(
    'leak no pages when requests are cancelled at any time: %s',
    async (transport) => {
      const kvBytes = 6 * 2 ** 20;
      const cluster = await started(group(3, { kvBytes }), 2, transport);
      const spec = fc.record({
        kind: fc.nat(5),
        length: fc.integer({ min: 1, max: 900 }),
        output: fc.integer({ min: 1, max: 6 }),
        /** Cancelled after so many events; 0: immediately. */
        cancelAfter: fc.option(fc.nat(3), { nil: undefined }),
      });
      await answerOf(cluster, liveRequest('first', livePrompt(6, 900), 2));
      expect(ran(cluster, 1)).toBeGreaterThan(0);
      let run = 0;
      await fc.assert(
        fc.asyncProperty(fc.array(spec, { minLength: 1, maxLength: 8 }), async (specs) => {
          run++;
          const ended = specs.map(async ({ kind, length, output, cancelAfter }, i) => {
            const request = liveRequest(`${transport} ${run}.${i}`, livePrompt(kind, length), output);
            if (cancelAfter !== undefined) return cancelled(cluster, request, cancelAfter);
            const [answer, expected] = await Promise.all([answerOf(cluster, request), answerOf(alone, request)]);
            expect(bare(answer)).toEqual(bare(expected));
          });
          await Promise.all(ended);
          await atRest(cluster);
        }),
        { numRuns: 4 },
      );
    },
  );

  it.each([
    { which: 'the first member, at a chunk that the next member waits for', by: 'struck by activations' },
    { which: 'another member, when it has joined', by: 'struck by joinedPipeline' },
    { which: 'the last member, when the prompt is computed', by: 'struck by the end' },
    { which: 'the decode instance, when it has granted memory', by: 'struck by reserved' },
  ])('answers all requests when one instance crashes: $which', async ({ by }) => {
    const cluster = await started([...group(3), { role: 'decode' }], 2);
    const asked = [by, 'a', 'b'].map((id, kind) => liveRequest(id, livePrompt(kind, 900 - 300 * kind), 6));
    const answers = await Promise.all(asked.map((request) => answerOf(cluster, request)));
    for (const [i, request] of again(`after ${by}`, asked).entries())
      expect(bare(answers[i])).toEqual(bare(await answerOf(alone, request)));
    expect(cluster.instances().filter(({ ready }) => ready)).toHaveLength(4);
    await atRest(cluster);
  });
});
