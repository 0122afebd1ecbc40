// Simulated instances with sparse layers: times, figures, throughput and refused combinations.
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it, onTestFinished } from 'vitest';
import { readOptions } from '../../src/cli/options/options.ts';
import { clientPlot } from '../../src/cli/simulate/clients/client-plot.ts';
import { sweepClients } from '../../src/cli/simulate/clients/client-sweep.ts';
import { runSimulation, simulationSchema } from '../../src/cli/simulate/simulated-run.ts';

const device = { workload: 'plain', hardware: 'rtx4090', model: 'llama3-8b', mixed: '1', blockTokens: '32' };
const small = {
  ...device,
  input: '500..900',
  output: '30..90',
  requests: '16',
  clients: '6',
  hostCacheBlocks: '0',
  cacheBlocks: '300',
};

const options = (flags: Readonly<Record<string, unknown>>) => readOptions(simulationSchema, flags);
const simulate = async (flags: Readonly<Record<string, unknown>>) =>
  (await runSimulation(options({ ...small, check: true, ...flags }))).outcome;

describe('simulated sparse KV', () => {
  it.each([
    { sparse: 'first-n', sparseBudget: '300' },
    { sparse: 'pyramid', sparseBudget: '200', sparseDecode: 'compact' },
    { sparse: `full,${Array.from({ length: 31 }, (_, layer) => 700 - 20 * layer).join()}`, sparseCache: 'none' },
  ])('takes the same time with equal steps run at once, with %j', async (flags) => {
    const outcome = await simulate(flags);
    expect([outcome.completedRequests, outcome.sparse?.selections]).toEqual([16, 16]);
    expect((await simulate({ ...flags, coalesce: false })).stateHash).toBe(outcome.stateHash);
  });

  it('takes the time of instances without sparse layers if requests keep all tokens', async () => {
    const [full, dense] = [await simulate({ sparse: 'uniform', sparseBudget: 'full' }), await simulate({})];
    expect(full.stateHash).toBe(dense.stateHash);
    expect([full.sparse?.selections, full.sparse?.selectionMs]).toEqual([0, 0]);
    expect(dense.sparse).toBeUndefined();
  });

  it('reports kept tokens, the pages of each layer and the time of selections', async () => {
    const lengths = { input: '1000', output: '40', sparse: 'first-n', sparseBudget: '300' };
    const { sparse, endUs } = await simulate(lengths);
    expect(sparse).toMatchObject({ selections: 16, promptTokensMean: 1000, keptTokensMean: 300 });
    expect(sparse?.pagesByLayer).toEqual([...Array(3).fill(32), ...Array(29).fill(10)]);
    expect([sparse?.pages, sparse?.fullPages]).toEqual([3 * 32 + 290, 32 * 32]);
    expect(sparse?.selectionMsMean).toBeCloseTo((sparse?.selectionMs ?? 0) / 16, 6);
    expect(sparse?.selectionMs).toBeLessThan((0.05 * endUs) / 1000);
  });

  it('reads chosen pages and their bounds with quest, and evicts nothing', async () => {
    // 992 tokens and 32 steps: decode rows of 32 pages, of which 3 are chosen in the layers after the first two.
    const lengths = { input: '992', output: '33', requests: '4', clients: '2' };
    const quest = { ...lengths, sparse: 'quest', sparseBudget: '96' };
    const outcome = await simulate(quest);
    expect(outcome.sparse).toMatchObject({ selections: 0, selectionMs: 0 });
    const read = (2 * 1008.5 + 30 * (2 * 32 + 16.5 + 32)) / 32;
    expect(outcome.sparse?.readShare).toBeCloseTo(read / 1008.5, 3);
    expect((await simulate({ ...quest, coalesce: false })).stateHash).toBe(outcome.stateHash);
    const [all, dense] = [await simulate({ ...quest, sparseBudget: '2048' }), await simulate(lengths)];
    expect(outcome.endUs).toBeLessThan(dense.endUs);
    // Bounds are read even where all pages are.
    expect(all.sparse?.readShare).toBeCloseTo(1 + (30 / 32) * (32 / 1008.5), 3);
    expect(all.endUs).toBeGreaterThan(dense.endUs);
  });

  it('breaks no invariant in random runs, in which coalescing changes nothing', async () => {
    const budgets = fc.constantFrom('64', '300', '1000', 'full');
    const flags = fc.record({
      ...{ workload: fc.constantFrom('real', 'plain'), seed: fc.nat(1000), shared: fc.constantFrom(0, 0.5) },
      ...{ mixed: fc.integer({ min: 1, max: 2 }), cacheBlocks: fc.constantFrom(100, 200), batchRate: fc.constant(1) },
      ...{ sparse: fc.constantFrom('first-n', 'pyramid', 'uniform', 'quest'), sparseBudget: budgets },
      ...{ sparseCache: fc.constantFrom('full', 'none'), sparseDecode: fc.constantFrom('replace', 'compact') },
      ...{ sparseObserve: fc.constantFrom(16, 256), pinFamilies: fc.constant(2), pinMemory: fc.constantFrom(0, 0.3) },
    });
    const rest = { clients: undefined, rate: '8', requests: '14', families: '3', context: '3000', output: '10..60' };
    await fc.assert(
      fc.asyncProperty(flags, async (drawn) => {
        const evicts = { sparseCache: undefined, sparseDecode: undefined, sparseObserve: undefined };
        const given = drawn.sparse === 'quest' ? { ...drawn, ...evicts } : drawn;
        const outcome = await simulate({ ...rest, ...given });
        expect(outcome.requests).toBe(14);
        expect((await simulate({ ...rest, ...given, coalesce: false })).stateHash).toBe(outcome.stateHash);
      }),
      { numRuns: 4 },
    );
  });

  it('runs an output of 8,000 tokens in the memory of the prompt and its slots', async () => {
    // 1,000 tokens have 32 blocks, and 300 slots have 10.
    const long = { input: '1000', output: '8000', requests: '3', clients: '1', cacheBlocks: '43' };
    const outcome = await simulate({ ...long, sparse: 'uniform', sparseBudget: '300' });
    expect([outcome.completedRequests, outcome.preemptions]).toEqual([3, 0]);
    expect((await simulate(long)).completedRequests).toBe(0);
  });

  it('preempts and computes again where memory is short', async () => {
    const outcome = await simulate({ sparse: 'uniform', sparseBudget: '100', cacheBlocks: '60' });
    expect(outcome.completedRequests).toBe(16);
    const growing = { sparse: 'first-n', sparseFullLayers: '31', sparseBudget: '600', cacheBlocks: '70' };
    const preempted = await simulate({ ...growing, output: '300', clients: '12' });
    expect(preempted.completedRequests).toBe(16);
    expect(preempted.preemptions).toBeGreaterThan(0);
  });

  describe('beside other parts of a cluster', () => {
    const rules = [
      { sparse: 'first-n', sparseBudget: '200' },
      { sparse: 'uniform', sparseBudget: '200', sparseCache: 'none' },
      { sparse: 'quest', sparseBudget: '128' },
    ];
    const roles = { mixed: undefined, prefill: '2', decode: '1' };
    const shared = { workload: 'real', families: '3', shared: '0.8', cacheBlocks: '100', requests: '8' };
    const cluster = { hardware: 'a800x8', clients: undefined, rate: '4', requests: '4', output: '10..40' };

    it.each([
      ['prefill and decode instances', roles],
      ['hand-offs after the prompt', { ...roles, stream: false }],
      ['attention workers by heads', { dop: '2,2' }],
      ['attention workers by requests, with prefill instances', { ...roles, dop: '2,2', partition: 'requests' }],
      ['host memory and SSD', { ...shared, hostCacheBlocks: '60', ssdCacheBlocks: '500' }],
      ['a store', { ...shared, mixed: '2', store: '1' }],
      ['pipeline groups', { ...roles, cppGroup: '2', cppTokens: '300' }],
      ['lent memory', { mixed: '2', borrow: true }],
      ['lent memory and hand-offs', { ...roles, borrow: true }],
    ])('runs with %s, and coalescing changes nothing', async (_, flags) => {
      const isWhole = 'borrow' in flags || 'cppGroup' in flags;
      for (const rule of isWhole ? rules.slice(1, 2) : rules) {
        const given = { ...cluster, ...flags, ...rule };
        const outcome = await simulate(given);
        expect([outcome.completedRequests, outcome.requests - outcome.completedRequests]).toEqual([
          outcome.requests,
          0,
        ]);
        expect(outcome.sparse?.selections).toBe(rule.sparse === 'quest' ? 0 : outcome.requests);
        expect((await simulate({ ...given, coalesce: false })).stateHash).toBe(outcome.stateHash);
      }
    });

    it('hands off kept tokens alone: the slots of sparse layers, and the blocks of full ones', async () => {
      const lengths = { ...cluster, ...roles, input: '1000', output: '20', nicGbps: '10' };
      const [dense, sparse, chosen] = [
        await simulate(lengths),
        await simulate({ ...lengths, sparse: 'first-n', sparseBudget: '200' }),
        await simulate({ ...lengths, sparse: 'quest', sparseBudget: '200' }),
      ];
      // 29 layers have 7 pages of slots each, and 3 layers 1,000 tokens; states take two pages.
      const share = (3 * 1000 + 29 * 7 * 32 + 2 * 32) / (32 * 1000);
      expect((sparse.bytesMoved.handoff ?? 0) / (dense.bytesMoved.handoff ?? 1)).toBeCloseTo(share, 2);
      expect(chosen.bytesMoved.handoff).toBe(dense.bytesMoved.handoff);
    });

    it('loads a prefix from host memory into both groups of layers, and frees it there with --sparse-cache none', async () => {
      const tiers = { ...cluster, ...shared, input: '900', cacheBlocks: '70', hostCacheBlocks: '300', requests: '16' };
      const [full, none] = [
        await simulate({ ...tiers, sparse: 'first-n', sparseBudget: '200' }),
        await simulate({ ...tiers, sparse: 'first-n', sparseBudget: '200', sparseCache: 'none' }),
      ];
      expect(full.tiers?.hitTokens.host).toBeGreaterThan(0);
      expect(none.tiers?.hitTokens.host).toBe(0);
    });
  });

  it('of llama3-8b on one rtx4090 is stable with 20 clients, at over 1.5 times the throughput of 10 dense ones', async () => {
    const loop = { ...device, input: '4000', output: '500', requests: '110', sparse: 'first-n' };
    const sweep = await sweepClients(options({ ...loop, clients: '10,20', sparseBudget: 'full,1000' }));
    const [dense, sparse] = sweep.sweeps;
    expect([dense.stableClients, sparse.stableClients]).toEqual([10, 20]);
    const [ten] = dense.runs;
    const [, twenty] = sparse.runs;
    expect(twenty.outputTokensPerSecond / ten.outputTokensPerSecond).toBeGreaterThan(1.5);
    expect(twenty.outputTokensPerSecond / ten.outputTokensPerSecond).toBeLessThan(1.75);
    const svg = clientPlot(sweep, 'a < b');
    expect(svg.match(/<circle/g)).toHaveLength(2 * 4 - 1);
    expect(svg).toContain('1,000 kept tokens');
    expect(svg).toContain('a &lt; b');
  });

  it('writes the output files of each number of clients and budget', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kvasir-sweep-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const outputs = { report: join(folder, 'run.html'), timeline: join(folder, 'steps') };
    const sparse = { sparse: 'first-n', sparseBudget: 'full,300' };
    await sweepClients(options({ ...small, ...outputs, ...sparse, clients: '1,2' }));
    const runs = ['300-1', '300-2', 'full-1', 'full-2'];
    const names = [...runs.map((run) => `run-${run}.html`), ...runs.map((run) => `steps-${run}`)];
    expect(readdirSync(folder).sort()).toEqual(names);
    const pages = runs.map((run) => readFileSync(join(folder, `run-${run}.html`), 'utf8'));
    expect(new Set(pages).size).toBe(4);
  });

  it.each([
    [{ sparseBudget: '100' }, 'Cannot use --sparse-budget: it needs --sparse'],
    [{ sparse: 'pyramid' }, 'Cannot use --sparse pyramid: state the tokens to keep with --sparse-budget'],
    [{ sparse: '100,200' }, 'Cannot use --sparse: it has budgets of 2 layers, the model has 32'],
    [{ sparse: 'uniform', sparseBudget: '32' }, 'Cannot use a budget of 32 tokens: the last 32 are kept beside others'],
    [
      { sparse: 'first-n', sparseBudget: '64', borrow: true },
      'Cannot use --sparse first-n: full layers cannot be lent beside sparse ones',
    ],
    [
      { sparse: 'first-n', sparseBudget: '64', cppGroup: '2', prefill: '2', decode: '1', mixed: undefined },
      'Cannot use --sparse first-n: pipeline groups divide layers of one kind',
    ],
    [{ sparse: 'uniform', sparseBudget: '64', decodeOnly: true }, 'remove --decode-only'],
    [
      { sparse: 'quest', sparseBudget: '64', sparseTopP: '0.9' },
      'Cannot use --sparse quest: the pages that reach a mass',
    ],
    [{ sparse: 'uniform', sparseBudget: '64,full' }, 'Cannot use --sparse-budget 64,full: to compare budgets, state'],
    [{ sparse: '64,full', sparseBudget: '64' }, 'Cannot use --sparse-budget with --sparse 64,full: the list has'],
    [{ sparse: 'uniform', sparseBudget: '64', sparseFullLayers: '32' }, 'Cannot use --sparse-full-layers 32'],
  ])('is refused with %j', async (flags, message) => {
    await expect(async () => simulate(flags)).rejects.toThrow(message);
  });
});
