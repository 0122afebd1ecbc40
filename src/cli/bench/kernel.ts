// `kvasir bench kernel NAME`: attention and linear layers beside the limits of the machine.
import { Command } from 'commander';
import { z } from 'zod';
import { benchAttention } from '../../bench/kernel/attention.ts';
import { benchGemm, type GemmLimits, gemmShapes } from '../../bench/kernel/gemm.ts';
import { KernelLab } from '../../bench/kernel/lab.ts';
import { inputForms } from '../../engine/forms.ts';
import type { InputForm } from '../../graph/program.ts';
import { weightTypeCodes } from '../../kernel/codes.ts';
import { modelOptionsSchema, readOptions } from '../options/options.ts';
import { createBackend } from '../serve/backend.ts';
import { printTable } from '../terminal/table.ts';
import { counts, list, progress, threadsFlag } from './options.ts';

export function kernelCommand(): Command {
  return new Command('kernel').addCommand(attentionCommand()).addCommand(gemmCommand());
}

const count = z.coerce.number().int().min(1);

const attentionSchema = modelOptionsSchema.pick({ threads: true }).extend({
  kv: z.enum(['bf16', 'f32', 'q8']).default('bf16'),
  kvHeads: count.default(8),
  group: count.default(4),
  headDim: count.default(64),
  contexts: counts(1, [4096, 16_384, 65_536]),
  queries: count.default(512),
  mebibytes: count.default(1024),
  repeats: count.default(5),
});

function attentionCommand(): Command {
  return new Command('attention')
    .description('Decode over shuffled pages, and prefill, at several context lengths')
    .addOption(threadsFlag())
    .option('--kv <type>', 'Use pages of this type: bf16, f32 or q8 (default: bf16)')
    .option('--kv-heads <n>', 'Use this number of KV heads (default: 8)')
    .option('--group <n>', 'Use this number of query heads per KV head (default: 4)')
    .option('--head-dim <n>', 'Use heads of this dimension (default: 64)')
    .option('--contexts <list>', 'Use these context lengths (default: 4096,16384,65536)')
    .option('--queries <n>', 'Prefill chunks of this number of rows (default: 512)')
    .option('--mebibytes <n>', 'Read this amount of memory for the roof and the decode rows (default: 1024)')
    .option('--repeats <n>', 'Report the median of this number of runs (default: 5)')
    .option('--json', 'Print one JSON object')
    .action(({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { kvHeads, group, headDim, ...options } = readOptions(attentionSchema, flags);
      const report = benchAttention({ ...options, shape: { kvHeads, group, headDim }, onProgress: progress });
      if (json === true) return console.log(JSON.stringify(report));
      const { decode, prefill, oneThread, roofGbPerSecond, shape, ...facts } = report;
      printTable([{ ...facts, ...shape, roofGbPerSecond }], 'Shape and memory roof');
      printTable([oneThread, ...decode], 'Decode');
      printTable(prefill, 'Prefill');
    });
}

const weightTypes = Object.keys(weightTypeCodes) as (keyof typeof weightTypeCodes)[];

const gemmSchema = modelOptionsSchema.pick({ threads: true }).extend({
  shapes: list(
    z.enum(gemmShapes.map(({ name }) => name)),
    gemmShapes.map(({ name }) => name),
  ),
  types: list(z.enum(weightTypes), weightTypes),
  inputs: list(z.enum(inputForms), inputForms),
  rows: counts(1, [1, 8, 32, 512]),
  mebibytes: count.default(128),
  roofMebibytes: count.default(1024),
  repeats: count.default(3),
});

function gemmCommand(): Command {
  return new Command('gemm')
    .description('Linear layers of the 135M and 1B shapes, by weight type, input form and rows')
    .addOption(threadsFlag())
    .option('--shapes <list>', `Measure these layers (default: ${gemmShapes.map(({ name }) => name).join(',')})`)
    .option('--types <list>', 'Measure these weight types (default: all)')
    .option('--inputs <list>', 'Measure these input forms (default: bf16,i16,int8,f32)')
    .option('--rows <list>', 'Measure these numbers of input rows (default: 1,8,32,512)')
    .option('--mebibytes <n>', 'Read at least this amount of weights per run, in copies of the layer (default: 128)')
    .option('--roof-mebibytes <n>', 'Read this amount of memory for the roof (default: 1024)')
    .option('--repeats <n>', 'Report the median of this number of runs (default: 3)')
    .option('--json', 'Print one JSON object')
    .action(({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { threads, roofMebibytes, shapes, ...options } = readOptions(gemmSchema, flags);
      const limits = measureLimits(threads, roofMebibytes);
      const backend = createBackend(threads);
      try {
        const report = benchGemm(backend, {
          ...options,
          shapes: gemmShapes.filter(({ name }) => shapes.includes(name)),
          limits,
          onProgress: progress,
        });
        if (json === true) return console.log(JSON.stringify(report));
        printTable([{ isa: report.isa, threads, ...limits }], 'Machine limits');
        printTable(report.rows, 'Linear layers');
      } finally {
        backend.close();
      }
    });
}

function measureLimits(threads: number, mebibytes: number): GemmLimits {
  const lab = new KernelLab(threads);
  try {
    const peak = (inputs: InputForm): number => Math.round(lab.productPeak(inputs));
    const peakGflopPerSecond = { bf16: peak('bf16'), i16: peak('i16'), int8: peak('int8'), f32: peak('f32') };
    const limits = { roofGbPerSecond: Math.round(10 * lab.readRoof(mebibytes)) / 10, peakGflopPerSecond };
    progress(`read roof ${limits.roofGbPerSecond} GB/s, peaks ${JSON.stringify(peakGflopPerSecond)} GFLOP/s`);
    return limits;
  } finally {
    lab.close();
  }
}
