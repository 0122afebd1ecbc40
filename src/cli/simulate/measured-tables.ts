// Measured kernel latencies from a directory of CSV files, plain or gzip: SYSTEM_vllm*_KERNEL_perf.csv, times in milliseconds.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import {
  type AttentionTable,
  type GemmTable,
  type MeasuredTables,
  type ReduceTable,
  withoutQuantising,
} from '../../core/cost/tables/measured-tables.ts';
import { UsageError } from '../usage-error.ts';
import { type CsvTable, readCsv } from './csv-file.ts';

/** Names of devices in the tables, by hardware entry; other entries have no tables. */
const systems: Readonly<Record<string, string>> = { a100: 'a100_sxm', h100: 'h100_sxm', h200: 'h200_sxm' };

const headDim = 128;

export interface TableSelection {
  /** Name of a hardware entry: h100x8. */
  readonly hardware: string;
  readonly precision: 'bf16' | 'fp8';
  readonly kvType: 'bf16' | 'fp8';
}

const dtypes = { bf16: 'bfloat16', fp8: 'fp8' };

/** @throws UsageError naming the missing table, file, line or precision */
export function readMeasuredTables(directory: string, { hardware, precision, kvType }: TableSelection): MeasuredTables {
  const system = systems[hardware.split(/[-x]/)[0] ?? ''];
  if (system === undefined) {
    throw new UsageError(
      `Cannot use --tables: there are none for ${hardware}: known are ${Object.keys(systems).join(', ')}`,
    );
  }
  const kernel = (name: string) => readCsv(findFile(directory, `${system}_vllm`, `_${name}_perf`));
  const products = kernel('gemm');
  const bf16 = gemmTable(products, 'bf16');
  const attention = { kv_cache_dtype: dtypes[kvType], head_dim: String(headDim) };
  const library = readCsv(findFile(directory, `${system}_nccl`, '_perf'));
  return {
    name: join(directory, `${system}_vllm*`),
    gemm: precision === 'bf16' ? bf16 : withoutQuantising(gemmTable(products, 'fp8'), bf16),
    contextAttention: attentionTable(kernel('context_attention'), attention),
    generationAttention: attentionTable(kernel('generation_attention'), attention),
    allReduce: {
      engine: reduceTable(kernel('custom_allreduce'), { backend: 'vllm_graph' }),
      library: reduceTable(library, { op_name: 'all_reduce', nccl_dtype: 'half' }),
    },
    headDim,
  };
}

function findFile(directory: string, start: string, middle: string): string {
  let names: readonly string[];
  try {
    names = readdirSync(directory);
  } catch (error) {
    throw new UsageError(`Cannot read tables: ${error instanceof Error ? error.message : String(error)}`);
  }
  const name = names.find((file) => file.startsWith(start) && file.slice(start.length).includes(`${middle}.csv`));
  if (name === undefined) throw new UsageError(`Cannot read tables: ${directory} has no ${start}*${middle}.csv`);
  return join(directory, name);
}

/** The rows with these texts. @throws UsageError if there are none */
function requiredRows(table: CsvTable, texts: Readonly<Record<string, string>>): CsvTable {
  const rows = table.where(texts);
  if (rows.length > 0) return rows;
  const conditions = Object.entries(texts).map(([name, text]) => `${name} ${text}`);
  throw new UsageError(`Cannot use ${table.path}: it has no rows of ${conditions.join(', ')}`);
}

function gemmTable(table: CsvTable, precision: 'bf16' | 'fp8'): GemmTable {
  const rows = requiredRows(table, { gemm_dtype: dtypes[precision] });
  return { m: rows.numbers('m'), n: rows.numbers('n'), k: rows.numbers('k'), us: microseconds(rows) };
}

/** Prefill rows have their tokens in `isl` and a `step` of 0; decode rows have `step` keys before them. */
function attentionTable(table: CsvTable, texts: Readonly<Record<string, string>>): AttentionTable {
  const rows = requiredRows(table, texts);
  const steps = rows.numbers('step');
  return {
    batch: rows.numbers('batch_size'),
    tokens: rows.numbers('isl').map((length, i) => length + steps[i]),
    heads: rows.numbers('num_heads'),
    kvHeads: rows.numbers('num_key_value_heads'),
    us: microseconds(rows),
  };
}

function reduceTable(table: CsvTable, texts: Readonly<Record<string, string>>): ReduceTable {
  const rows = requiredRows(table, texts);
  return { devices: rows.numbers('num_gpus'), bytes: rows.numbers('message_size'), us: microseconds(rows) };
}

function microseconds(rows: CsvTable): Float64Array {
  return rows.numbers('latency').map((ms) => ms * 1000);
}
