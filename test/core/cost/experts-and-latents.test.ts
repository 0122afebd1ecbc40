// Mixtures of experts, latent attention, fp8 KV and speculative decoding: sizes against published figures, times against
// figures computed by hand.
import { describe, expect, it } from 'vitest';
import { type CostOptions, createCostModel } from '../../../src/cli/options/cost-model.ts';
import { hardwareSpec, modelSpec } from '../../../src/cli/options/specs.ts';
import { activeParameters, headParameters, kvBytesPerTokenOf, parameters } from '../../../src/core/cost/memory.ts';
import { assumedEfficiency, RooflineCost } from '../../../src/core/cost/roofline.ts';
import { expectedTokens, SpeculativeCost } from '../../../src/core/cost/speculative-cost.ts';
import type { MeasuredTables } from '../../../src/core/cost/tables/measured-tables.ts';
import { prepareKernels } from '../../../src/core/cost/tables/table-cost.ts';
import { decodeShape, type StepShape } from '../../../src/core/protocol/step-shape.ts';

const options: CostOptions = {
  ...{ cost: 'roofline', model: 'llama3-8b', hardware: 'h200x8', tp: 1, pp: 1, precision: 'bf16', kvType: 'bf16' },
};

function costOf(changes: Partial<CostOptions> = {}) {
  return createCostModel({ ...options, ...changes });
}

const promptOf = (rows: number): StepShape => ({
  ...{ rows, keyRows: (rows * (rows + 1)) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 1 },
});

describe('published sizes', () => {
  // Makers count active parameters with or without the embedding.
  it.each([
    ['deepseek-v3', 671, 37, 70_272],
    ['deepseek-r1', 671, 37, 70_272],
    ['deepseek-v2-lite', 15.7, 2.4, 31_104],
    ['mixtral-8x7b', 46.7, 12.9, 131_072],
    ['qwen3-30b-a3b', 30.5, 3.3, 98_304],
    ['gpt-oss-20b', 20.9, 3.6, 49_152],
    ['gpt-oss-120b', 116.8, 5.1, 73_728],
    ['llama3-8b', 8.0, 7.5, 131_072],
  ])('%s: %d billion parameters, %d active, %i bytes of KV a token', (name, total, active, kvBytes) => {
    const model = modelSpec(name);
    expect(Math.abs(parameters(model) / 1e9 / total - 1)).toBeLessThan(0.005);
    const least = activeParameters(model) / 1e9;
    const most = least + headParameters(model) / 1e9;
    expect(least).toBeLessThan(active + 0.06);
    expect(most).toBeGreaterThan(active - 0.06);
    expect(kvBytesPerTokenOf(model, 2)).toBe(kvBytes);
  });
});

describe('experts', () => {
  const mixtral = { model: 'mixtral-8x7b', tp: 2 } as const;

  it('are read as far as rows take them: two of eight by one row, nearly all by a large batch', () => {
    const readUs = (rows: number) => costOf(mixtral).stepUs(decodeShape(rows, 0));
    const bytesPerUs = (2 * hardwareSpec('h200x8').memoryBytesPerSecond * assumedEfficiency.memory) / 1e6;
    const expertBytes = 2 * 32 * 3 * 4096 * 14_336;
    // 1 - (3/4)^n of eight experts.
    for (const [rows, taken] of [
      [2, 3.5],
      [4, 5.46875],
    ]) {
      const more = ((taken - 2) * expertBytes) / bytesPerUs;
      expect(Math.abs(readUs(rows) - readUs(1) - more)).toBeLessThan(10);
    }
    expect(Math.abs(readUs(64) - readUs(1) - (6 * expertBytes) / bytesPerUs)).toBeLessThan(200);
  });

  it('of prompts take the arithmetic of active parameters, and imbalance multiplies it', () => {
    const [even, uneven] = [1, 1.5].map((expertImbalance) => costOf({ ...mixtral, expertImbalance }));
    const us = (cost: ReturnType<typeof costOf>) => cost.stepUs(promptOf(8192)) - cost.stepUs(promptOf(4096));
    const operationsPerUs = (2 * hardwareSpec('h200x8').operationsPerSecond.bf16 * assumedEfficiency.compute) / 1e6;
    const experts = (2 * 4096 * 32 * 2 * 3 * 4096 * 14_336) / operationsPerUs;
    expect((us(uneven) - us(even)) / (0.5 * experts)).toBeCloseTo(1, 3);
  });

  it('leave rowsWithin the largest number of rows that fits', () => {
    const cost = costOf(mixtral);
    const beside = decodeShape(20, 20_000);
    const rows = cost.rowsWithin(60_000, beside, 100);
    const withRows = (n: number) =>
      cost.stepUs({
        ...beside,
        rows: 20 + n,
        keyRows: 20_000 + n * 100 + (n * (n + 1)) / 2,
        logitRows: 21,
      });
    expect(rows).toBeGreaterThan(0);
    expect(withRows(rows)).toBeLessThanOrEqual(60_000);
    expect(withRows(rows + 1)).toBeGreaterThan(60_000);
  });

  it.each([
    ['mixtral-8x7b', 'Cannot time experts: tables has no kernels of experts'],
    ['deepseek-v3', 'Cannot compute latent attention with the measured kernels of tables'],
  ])('of %s have no measured kernels', (name, message) => {
    const tables = { name: 'tables', headDim: 128 } as MeasuredTables;
    const device = hardwareSpec('h200x8');
    const sizes = {
      tensorParallel: 8,
      pipelineParallel: 1,
      weightBytes: 1,
      kvBytes: 1,
      memoryShare: 0.9,
      stepRows: 8192,
    };
    expect(() => prepareKernels({ model: modelSpec(name), tables, device, ...sizes })).toThrow(message);
  });
});

describe('latent attention', () => {
  const deepseek = { model: 'deepseek-v3', precision: 'fp8', tp: 8 } as const;

  it('replicates the latent vectors on every tensor-parallel device', () => {
    const cost = costOf(deepseek);
    const { memoryBytes } = hardwareSpec('h200x8');
    expect(cost.kvBytesPerToken).toBe(70_272);
    const left = 0.9 * 8 * memoryBytes - parameters(modelSpec('deepseek-v3'));
    expect(cost.kvCapacityTokens * 8 * 70_272).toBeLessThan(left);
    expect(cost.kvCapacityTokens * 8 * 70_272).toBeGreaterThan(0.9 * left);
  });

  it('decodes in latent space: 2 (576 + 512) operations a head and key, or reading 576 elements', () => {
    const h200 = hardwareSpec('h200x8');
    const keysUs = costOf(deepseek).stepUs(decodeShape(8, 8_000_000)) - costOf(deepseek).stepUs(decodeShape(8, 0));
    const operationsUs = (61 * 128 * 2 * (576 + 512)) / (((h200.operationsPerSecond.fp8 ?? 0) * 0.6 * 8) / 1e6);
    const readUs = (8 * 70_272) / ((h200.memoryBytesPerSecond * 0.8 * 8) / 1e6);
    expect(keysUs / 8_000_000 / Math.max(operationsUs, readUs)).toBeCloseTo(1, 3);
  });
});

describe('KV of type fp8', () => {
  it('halves the bytes of a token and the time to read keys', () => {
    const [bf16, fp8] = (['bf16', 'fp8'] as const).map((kvType) => costOf({ kvType }));
    expect(fp8.kvBytesPerToken).toBe(bf16.kvBytesPerToken / 2);
    expect(Math.abs(fp8.kvCapacityTokens - 2 * bf16.kvCapacityTokens)).toBeLessThanOrEqual(1);
    const keysUs = (cost: typeof bf16) => cost.stepUs(decodeShape(8, 8_000_000)) - cost.stepUs(decodeShape(8, 0));
    expect(keysUs(fp8) / keysUs(bf16)).toBeCloseTo(0.5, 3);
  });
});

describe('speculative decoding', () => {
  it('yields the accepted tokens up to the first rejected one, and the token of the target', () => {
    expect(expectedTokens({ tokens: 3, acceptance: 0.5 })).toBe(1.875);
    expect(expectedTokens({ tokens: 4, acceptance: 1 })).toBe(5);
    expect(expectedTokens({ tokens: 4, acceptance: 0 })).toBe(1);
  });

  it('divides the time of a memory-bound decode step by the expected tokens', () => {
    const decode = decodeShape(1, 1000);
    const speculative = costOf({ specTokens: 3, specAcceptance: 0.5 });
    expect(costOf().stepUs(decode) / speculative.stepUs(decode)).toBeCloseTo(1.875, 1);
    expect(speculative.stepUs(promptOf(4000))).toBe(costOf().stepUs(promptOf(4000)));
  });

  it('costs time where arithmetic bounds the step, and the drafter takes time and memory', () => {
    const large = decodeShape(512, 512 * 100);
    const [plain, rejected] = [costOf(), costOf({ specTokens: 4, specAcceptance: 0 })];
    expect(rejected.stepUs(large)).toBeGreaterThan(1.5 * plain.stepUs(large));
    const drafted = costOf({ model: 'llama3-70b', tp: 8, specTokens: 3, specAcceptance: 0.8, specModel: 'llama3-8b' });
    const free = costOf({ model: 'llama3-70b', tp: 8, specTokens: 3, specAcceptance: 0.8 });
    const drafter = costOf({ tp: 8 });
    const one = decodeShape(1, 1000);
    expect(drafted.stepUs(one) - free.stepUs(one)).toBeCloseTo((3 * drafter.stepUs(one)) / 2.952, -1);
    expect(drafted.kvCapacityTokens).toBeLessThan(free.kvCapacityTokens);
  });

  it('keeps the time of prefill rows beside decode rows', () => {
    const model = { ...modelSpec('llama3-8b') };
    const h200 = hardwareSpec('h200x8');
    const device = { ...h200, operationsPerSecond: h200.operationsPerSecond.bf16 };
    const sizes = {
      tensorParallel: 1,
      pipelineParallel: 1,
      weightBytes: 2,
      kvBytes: 2,
      memoryShare: 0.9,
      stepRows: 8192,
    };
    const target = new RooflineCost({ model, device, efficiency: assumedEfficiency, ...sizes });
    const cost = new SpeculativeCost(target, { tokens: 2, acceptance: 0.5 });
    const mixed = { rows: 2010, keyRows: 3_000_000, decodeRows: 10, decodeKeys: 10_000, logitRows: 11 };
    expect(cost.stepUs(mixed)).toBeGreaterThan(target.stepUs({ ...promptOf(2000), keyRows: 2_990_000 }));
    // Three rows of each sequence for 1.75 tokens.
    expect(cost.stepUs(mixed)).toBeLessThan(1.01 * target.stepUs(mixed));
  });

  it('takes the weights of its drafter from the KV memory, where latent vectors are replicated too', () => {
    const latent = { model: 'deepseek-v3', precision: 'fp8', hardware: 'h200x8', tp: 8 } as const;
    const [alone, drafting] = [
      costOf(latent),
      costOf({ ...latent, specTokens: 2, specAcceptance: 0.8, specModel: 'llama3-8b' }),
    ];
    // 8 GB of weights of some 300 GB for KV, and 128 KiB beside 8 replicas of 69 KiB for each token.
    const [latents, keys] = [8 * alone.kvBytesPerToken, 131_072];
    const held = alone.kvCapacityTokens * latents;
    const expected = (held - parameters(modelSpec('llama3-8b'))) / (latents + keys);
    expect(drafting.kvCapacityTokens / expected).toBeCloseTo(1, 3);
  });

  it.each([
    [{ specTokens: 3 }, 'Cannot use --spec-tokens 3: state the share of accepted tokens with --spec-acceptance'],
    [{ specAcceptance: 0.5 }, 'Cannot use --spec-acceptance 0.5: it needs --spec-tokens'],
    [{ specModel: 'llama3-8b' }, 'Cannot use --spec-model llama3-8b: it needs --spec-tokens'],
  ])('is refused with %o', (changes, message) => {
    expect(() => costOf(changes)).toThrow(message);
  });
});
