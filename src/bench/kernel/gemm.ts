// `kvasir bench kernel gemm`: linear layers of two models by weight type, input form and rows, beside the machine's limits.

import { type LayerShape, LayerStack } from '../../engine/layer-stack.ts';
import type { InputForm } from '../../graph/program.ts';
import type { Backend, WeightType } from '../../kernel/backend.ts';
import { tensorLayouts } from '../../weights/types.ts';
import { median, round } from '../statistics.ts';

export interface NamedShape extends LayerShape {
  readonly name: string;
}

/** Linear layers of a Llama-shaped model as the engine runs them: q, k and v fused, gate and up fused. */
function modelShapes(model: string, hidden: number, ffn: number, qkv: number, vocabulary: number): NamedShape[] {
  return [
    { name: `${model}.qkv`, rows: qkv, columns: hidden },
    { name: `${model}.o`, rows: hidden, columns: hidden },
    { name: `${model}.gate-up`, rows: 2 * ffn, columns: hidden },
    { name: `${model}.down`, rows: hidden, columns: ffn },
    { name: `${model}.head`, rows: vocabulary, columns: hidden },
  ];
}

/** The shapes of SmolLM2-135M and of Llama 3.2 1B, the latter with a vocabulary of 32,000 as in `tools/peer-llama`. */
export const gemmShapes: readonly NamedShape[] = [
  ...modelShapes('135m', 576, 1536, 960, 49_152),
  ...modelShapes('1b', 2048, 8192, 3072, 32_000),
];

export interface GemmBenchOptions {
  readonly shapes: readonly NamedShape[];
  readonly types: readonly WeightType[];
  readonly inputs: readonly InputForm[];
  /** Input rows. */
  readonly rows: readonly number[];
  /** Least amount of weights that a timed run reads, in copies of the layer. */
  readonly mebibytes: number;
  readonly repeats: number;
  /** Upper limits of this machine; undefined without a measurement. */
  readonly limits: GemmLimits | undefined;
  readonly onProgress?: (line: string) => void;
}

export interface GemmLimits {
  readonly roofGbPerSecond: number;
  readonly peakGflopPerSecond: Readonly<Record<InputForm, number>>;
}

export interface GemmRow {
  readonly shape: string;
  readonly weights: WeightType;
  readonly inputs: InputForm;
  readonly rows: number;
  /** Of one layer. */
  readonly ms: number;
  /** Packed weights over time. */
  readonly gbPerSecond: number;
  readonly gflopPerSecond: number;
  /** The larger of bytes over the roof and operations over the peak, and which one it is. */
  readonly floorMs?: number;
  readonly bound?: 'memory' | 'compute';
  readonly percentOfFloor?: number;
}

export interface GemmBenchReport {
  readonly isa: string;
  readonly threads: number;
  readonly mebibytes: number;
  readonly limits: GemmLimits | undefined;
  readonly rows: readonly GemmRow[];
}

/** Largest number of operations of a timed run, unless one layer has more: with many rows the time does not depend on cold weights. */
const operationsMax = 2e10;

const floats: readonly WeightType[] = ['f32', 'f16', 'bf16'];

/** @throws Error if no layer supports any of the types with any of the inputs */
export function benchGemm(backend: Backend, options: GemmBenchOptions): GemmBenchReport {
  const rows: GemmRow[] = [];
  for (const shape of options.shapes) {
    for (const type of options.types) {
      // K types have blocks of 256, which rows of 576 do not fill.
      if (shape.columns % tensorLayouts[type].blockElements !== 0) continue;
      for (const inputs of options.inputs) {
        if ((inputs === 'int8' || inputs === 'i16') && floats.includes(type)) continue;
        rows.push(...benchLayer(backend, options, shape, type, inputs));
      }
    }
  }
  if (rows.length === 0) {
    const { shapes, types } = options;
    const selection = `${shapes.map(({ name }) => name).join(', ')} in ${types.join(', ')} with ${options.inputs.join(', ')}`;
    throw new Error(
      `Cannot bench layers: the blocks of the types do not fit, or inputs of integers are combined with float weights: ${selection}`,
    );
  }
  const { mebibytes, limits } = options;
  return { isa: backend.isa, threads: backend.threads, mebibytes, limits, rows };
}

function benchLayer(
  backend: Backend,
  options: GemmBenchOptions,
  shape: NamedShape,
  type: WeightType,
  inputs: InputForm,
): GemmRow[] {
  const stack = new LayerStack(backend, shape, type, inputs, options.mebibytes * 2 ** 20);
  try {
    return options.rows.map((rows) => {
      const operations = 2 * rows * shape.rows * shape.columns;
      const copies = Math.max(1, Math.min(stack.copies, Math.floor(operationsMax / operations)));
      const ms = (median(stack.time(rows, copies, options.repeats)) ?? Number.NaN) / copies;
      const row: GemmRow = {
        shape: shape.name,
        weights: type,
        inputs,
        rows,
        ms: roundFine(ms),
        gbPerSecond: round(stack.layerBytes / ms / 1e6),
        gflopPerSecond: round(operations / ms / 1e6),
        ...floor(options.limits, inputs, stack.layerBytes, operations, ms),
      };
      options.onProgress?.(describe(row));
      return row;
    });
  } finally {
    stack.close();
  }
}

function floor(
  limits: GemmLimits | undefined,
  inputs: InputForm,
  bytes: number,
  operations: number,
  ms: number,
): Pick<GemmRow, 'floorMs' | 'bound' | 'percentOfFloor'> {
  if (limits === undefined) return {};
  const memoryMs = bytes / limits.roofGbPerSecond / 1e6;
  const computeMs = operations / limits.peakGflopPerSecond[inputs] / 1e6;
  const floorMs = Math.max(memoryMs, computeMs);
  return {
    floorMs: roundFine(floorMs),
    bound: memoryMs > computeMs ? 'memory' : 'compute',
    percentOfFloor: round((100 * floorMs) / ms),
  };
}

function describe(row: GemmRow): string {
  const floor = row.floorMs === undefined ? '' : `, floor ${row.floorMs} ms (${row.bound}, ${row.percentOfFloor} %)`;
  return `${row.shape} ${row.weights} x ${row.inputs}, ${row.rows} rows: ${row.ms} ms, ${row.gbPerSecond} GB/s, ${row.gflopPerSecond} GFLOP/s${floor}`;
}

function roundFine(ms: number): number {
  return Math.round(ms * 1e5) / 1e5;
}
