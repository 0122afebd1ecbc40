// Measured serving points from `silicon_sample.csv`: aggregated vLLM servers of dense models on H100 and H200.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { ServingPoint } from '../../bench/cost/points.ts';
import { UsageError } from '../usage-error.ts';
import { type CsvTable, readCsv } from './csv-file.ts';

const models: Readonly<Record<string, string>> = {
  'Qwen/Qwen3-32B': 'qwen3-32b',
  'meta-llama/Llama-3.1-70B': 'llama3-70b',
  'nvidia/Llama-3.1-8B-Instruct-FP8': 'llama3-8b',
};
const hardware: Readonly<Record<string, string>> = { h100_sxm: 'h100x8', h200_sxm: 'h200x8' };

/**
 * Facts that the file does not contain. The harness of the 70B points draws lengths from 0.8 to 1 of the nominal ones; those of the
 * others are nominal, with a spread of 1 % for the jitter of real clients. The 70B servers on H200 admitted as
 * many requests at once as fit with KV in fp8, those on H100 as fit in bf16.
 */
const drawnSpread = 0.2;
const nominalSpread = 0.01;

/** @throws UsageError if the file is missing or has an invalid line */
export function readServingPoints(directory: string): readonly ServingPoint[] {
  const path = ['silicon_sample.csv', 'silicon_sample.csv.gz']
    .map((name) => join(directory, name))
    .find((candidate) => existsSync(candidate));
  if (path === undefined) throw new UsageError(`Cannot read serving points: ${directory} has no silicon_sample.csv`);
  const table = readCsv(path).where({ backend: 'vllm', mode: 'agg' });
  return Object.keys(models).flatMap((model) =>
    Object.keys(hardware).flatMap((system) => pointsOf(table.where({ model_path: model, system }))),
  );
}

function pointsOf(table: CsvTable): readonly ServingPoint[] {
  if (table.length === 0) return [];
  const text = (name: string) => table.texts(name);
  const columns = {
    id: text('id'),
    model: text('model_path').map((name) => models[name] ?? name),
    hardware: text('system').map((name) => hardware[name] ?? name),
    precision: text('precision').map((name) => (name === 'fp8' ? 'fp8' : 'bf16') as 'fp8' | 'bf16'),
    tensorParallel: table.numbers('tp_size'),
    concurrency: table.numbers('batch_size'),
    inputTokens: table.numbers('isl'),
    outputTokens: table.numbers('osl'),
    ttftMs: table.numbers('silicon_ttft_ms'),
    tpotMs: table.numbers('silicon_tpot_ms'),
  };
  return columns.id.map((id, i) => {
    const drawn = columns.model[i] === 'llama3-70b';
    return {
      id,
      model: columns.model[i],
      hardware: columns.hardware[i],
      precision: columns.precision[i],
      kv: drawn && columns.hardware[i] === 'h200x8' ? 'fp8' : 'bf16',
      tensorParallel: columns.tensorParallel[i],
      concurrency: columns.concurrency[i],
      inputTokens: columns.inputTokens[i],
      outputTokens: columns.outputTokens[i],
      spread: drawn ? drawnSpread : nominalSpread,
      ttftMs: columns.ttftMs[i],
      tpotMs: columns.tpotMs[i],
    };
  });
}
