// Hand-offs between instances of a process: the same bits as on one instance, and no page leaks.
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { availableIsas, loadNative } from '../../../src/kernel/native/native.ts';
import type { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { familySpecs, ModelFolder } from '../../engine/models.ts';
import { type Answer, answerOf, cancelled, liveCluster, livePrompt, liveRequest } from '../threads/instances.ts';

const native = loadNative();
const apart = [{ role: 'prefill' }, { role: 'decode' }] as const;

const open: LiveCluster[] = [];
afterEach(() => Promise.all(open.splice(0).map((cluster) => cluster.close())));

const started = (...instances: Parameters<typeof liveCluster>[0]) => startedOver('memory', ...instances);

async function startedOver(
  transport: 'memory' | 'shared' | 'tcp',
  ...instances: Parameters<typeof liveCluster>[0]
): Promise<LiveCluster> {
  const cluster = liveCluster(instances, transport);
  open.push(cluster);
  await cluster.ready();
  return cluster;
}

/** Resolves when no instance has requests and no request holds pages, within the time-out of the test. */
async function atRest(cluster: LiveCluster): Promise<void> {
  const busy = () => cluster.instances().some(({ waiting, running, pages }) => waiting + running + pages.used > 0);
  while (busy()) await new Promise((resolve) => setTimeout(resolve, 2));
}

const lengths = [1, 32, 33, 200];
const requests = lengths.map((length, kind) => liveRequest(`r${length}`, livePrompt(kind, length), 9));

describe.skipIf(native === undefined)('hand-offs between instances of a process', () => {
  const isas = native === undefined ? [] : availableIsas(native);
  const best = isas.at(-1) ?? 'portable';
  // Copies do not depend on the kernels: every form on the best instruction set, one form on the simplest.
  const forms = [
    ...(['bf16', 'int8', 'f32'] as const).map((inputs) => ({ inputs, kvType: undefined, isa: best })),
    { inputs: 'bf16' as const, kvType: 'q8' as const, isa: best },
    ...isas.slice(0, 1).map((isa) => ({ inputs: 'bf16' as const, kvType: undefined, isa })),
  ];

  /** One instance with the default settings. Its tokens and log-probabilities depend on no request before. */
  let single: LiveCluster;
  beforeAll(async () => {
    single = liveCluster([{}]);
    await single.ready();
  });
  afterAll(() => single?.close());
  /** The answers of one instance to the requests of the crash tests. */
  const crashed = Array.from({ length: 12 }, (_, i) => liveRequest(`d${i}`, livePrompt(i, 60 + 30 * i), 30));
  let crashAnswers: Promise<readonly Answer[]> | undefined;

  it.each(forms)('give the bits of one instance: inputs $inputs, KV $kvType, $isa', async ({ isa, ...own }) => {
    const before = process.env.KVASIR_ISA;
    process.env.KVASIR_ISA = isa;
    try {
      const [alone, pair] = [await started(own), await started(...apart.map(({ role }) => ({ role, ...own })))];
      const ask = (cluster: LiveCluster) => Promise.all(requests.map((request) => answerOf(cluster, request)));
      const [expected, answers] = await Promise.all([ask(alone), ask(pair)]);
      expect(answers).toEqual(expected);
      const [prefill, decode] = pair.instances();
      expect([prefill?.computedPromptTokens, decode?.computedPromptTokens]).toEqual([
        lengths.reduce((sum, length) => sum + length, 0),
        0,
      ]);
      await atRest(pair);
    } finally {
      if (before === undefined) delete process.env.KVASIR_ISA;
      else process.env.KVASIR_ISA = before;
    }
  });

  it.each(familySpecs.filter(({ window }) => window !== undefined))(
    'give the bits of one instance where layers have windows: $architecture',
    async (spec) => {
      const folder = new ModelFolder();
      try {
        const model = folder.huggingFace(spec, 'bf16');
        const [alone, pair] = [await started({ model }), await started(...apart.map(({ role }) => ({ role, model })))];
        const asked = [33, 72, 200, 333].map((length, i) => {
          const prompt = livePrompt(i, length).map((token) => token % spec.vocabSize);
          return liveRequest(`w${length}`, prompt, 70);
        });
        const ask = (cluster: LiveCluster) => Promise.all(asked.map((request) => answerOf(cluster, request)));
        expect(await ask(pair)).toEqual(await ask(alone));
        expect(pair.instances()[1]?.computedPromptTokens).toBe(0);
        await atRest(pair);
      } finally {
        folder.remove();
      }
    },
  );

  it('end at the prefill instance if the first token is the last', async () => {
    const [alone, pair] = [await started({}), await started(...apart)];
    const first = await Promise.all(requests.map((request) => answerOf(alone, request)));
    const asked = requests.map((request, i) => ({ ...request, stopTokenIds: first[i]?.tokens.slice(0, 1) ?? [] }));
    const ask = (cluster: LiveCluster) => Promise.all(asked.map((request) => answerOf(cluster, request)));
    const answers = await ask(pair);
    expect(answers.map(({ tokens, end }) => [tokens, end])).toEqual(
      asked.map(({ stopTokenIds }) => [stopTokenIds, { kind: 'finished', reason: 'stop' }]),
    );
    await atRest(pair);
  });

  it('give the bits of one instance over tcp, every page checked', async () => {
    const [alone, pair] = [await started({}), await startedOver('tcp', ...apart)];
    const ask = (cluster: LiveCluster) => Promise.all(requests.map((request) => answerOf(cluster, request)));
    expect(await ask(pair)).toEqual(await ask(alone));
    const [prefill, decode] = pair.instances();
    expect(decode?.computedPromptTokens).toBe(0);
    expect(prefill?.sent).toMatchObject({ faults: 0 });
    await atRest(pair);
  });

  it.each(['memory', 'shared', 'tcp'] as const)(
    'survive a crash of either side while pages are sent: %s',
    async (transport) => {
      const cluster = await startedOver(transport, ...apart, ...apart);
      const asked = crashed;
      crashAnswers ??= Promise.all(asked.map((request) => answerOf(single, request)));
      const expected = await crashAnswers;
      const ask = (requests: readonly GenerationRequest[]) => requests.map((request) => answerOf(cluster, request));
      const fatal = (id: string) => liveRequest(id, livePrompt(0, 60), 30);
      // The first crashes its decode instance, the second its prefill instance.
      const early = await Promise.all(ask([...asked.slice(0, 6), fatal('last straw')]));
      const late = await Promise.all(ask([fatal('poison'), ...asked.slice(6)]));
      const all = [...early, ...late];
      const wanted = [...expected.slice(0, 6), expected[0], expected[0], ...expected.slice(6)];
      const bare = (answer: Answer | undefined) => [answer?.tokens, answer?.logprobs, answer?.end];
      expect(all.map(bare)).toEqual(wanted.map(bare));
      expect(cluster.instances().filter(({ ready }) => ready)).toHaveLength(2);
    },
  );

  it('report cached tokens and log-probabilities of the prompt, even for short answers', async () => {
    const pair = await started(...apart);
    const asked = Array.from({ length: 40 }, (_, i) => {
      const plain = liveRequest(`s${i}`, livePrompt(i % 3, 70), 2);
      return i % 2 === 0 ? plain : { ...plain, sampling: { ...plain.sampling, promptLogprobs: true } };
    });
    const answers = await Promise.all(asked.map((request) => answerOf(pair, request)));
    expect(answers.map(({ cachedTokens }) => cachedTokens)).not.toContain(undefined);
    for (const [i, { logprobs }] of answers.entries())
      if (i % 2 === 1) expect(logprobs.length).toBeGreaterThanOrEqual(69);
    await atRest(pair);
  });

  it.each(['memory', 'shared', 'tcp'] as const)(
    'leak no pages when requests are cancelled at any time: %s',
    async (transport) => {
      const kvBytes = 3 * 2 ** 20;
      const roles = [{ role: 'prefill', kvBytes }, { role: 'prefill' }, { role: 'decode', kvBytes }] as const;
      const cluster = await startedOver(transport, ...roles);
      const spec = fc.record({
        kind: fc.nat(5),
        length: fc.integer({ min: 1, max: 300 }),
        output: fc.integer({ min: 0, max: 20 }),
        stops: fc.boolean(),
        echoes: fc.boolean(),
        penalised: fc.boolean(),
        /** Cancelled after so many events; 0: immediately. */
        cancelAfter: fc.option(fc.nat(6), { nil: undefined }),
      });
      let run = 0;
      await fc.assert(
        fc.asyncProperty(fc.array(spec, { minLength: 1, maxLength: 14 }), async (specs) => {
          run++;
          const ended = specs.map(async ({ kind, length, output, cancelAfter, stops, echoes, penalised }, i) => {
            const plain = liveRequest(`${transport}.${run}.${i}`, livePrompt(kind, length), output);
            const presencePenalty = penalised ? 0.7 : 0;
            const sampling = { ...plain.sampling, presencePenalty, promptLogprobs: echoes };
            const request = { ...plain, sampling, stopTokenIds: stops ? evenTokens : [] };
            if (cancelAfter !== undefined) return cancelled(cluster, request, cancelAfter);
            const [answer, expected] = await Promise.all([answerOf(cluster, request), answerOf(single, request)]);
            expect([answer.tokens, answer.logprobs, answer.end]).toEqual([
              expected.tokens,
              expected.logprobs,
              expected.end,
            ]);
          });
          await Promise.all(ended);
          await atRest(cluster);
        }),
        { numRuns: 8 },
      );
      const sent = cluster.instances().map((instance) => instance.sent?.bytes ?? 0);
      // The prefill instances may have fetched prefixes from the decode instance.
      expect(sent.slice(0, 2).map((bytes) => bytes > 0)).toEqual([true, true]);
      expect(cluster.instances().map((instance) => instance.sent?.faults)).toEqual([0, 0, 0]);
    },
  );
});

const evenTokens = Array.from({ length: 300 }, (_, i) => 2 * i);
