// `kvasir graph`: how a model is cut into slices for model workers, with attention between them.
import { Command, Option } from 'commander';
import { movedBytes, rotation } from '../../core/attention-workers/rotation.ts';
import { type AttentionReport, groupsOf, type SliceReport, sliceReports, titleOf } from '../../graph/slice-report.ts';
import { buildGraph } from '../../models/registry.ts';
import { openModel } from '../../weights/open-model.ts';
import { embeddedModel } from '../package-root.ts';
import { locateCached } from '../serve/model/locate-model.ts';
import { printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';
import { type GraphReport, slicesSvg } from './graph-svg.ts';
import { type RotationReport, rotationReport, rotationSvg } from './rotation-svg.ts';

export function graphCommand(): Command {
  return new Command('graph')
    .argument('[model]', 'GGUF file, Hugging Face directory, or a cached model of the hub (default: kvasir-tiny)')
    .option('--rotation <batches>', 'Print how this number of batches rotates over one model replica less: 2,4')
    .option('--json', 'Print one JSON object')
    .addOption(new Option('--svg', 'Print a picture of the slices as SVG').conflicts('json'))
    .action((model: string | undefined, { json, svg, rotation: batches }: GraphFlags) => {
      const report = reportOf(model === undefined ? embeddedModel : locateCached(model));
      if (batches !== undefined) return printRotations(report, batchesOf(batches), { json, svg });
      if (json === true) console.log(JSON.stringify(report));
      else if (svg === true) console.log(slicesSvg(report));
      else print(report);
    });
}

interface GraphFlags {
  readonly json?: boolean | undefined;
  readonly svg?: boolean | undefined;
  readonly rotation?: string | undefined;
}

/** @throws UsageError */
function batchesOf(text: string): readonly number[] {
  const all = text.split(',').map(Number);
  if (all.every((batches) => Number.isInteger(batches) && batches >= 2 && batches <= 8)) return all;
  throw new UsageError(`Cannot use --rotation ${text}: write numbers of batches from 2 to 8, for example 2,4`);
}

function printRotations(
  { architecture, slices }: GraphReport,
  all: readonly number[],
  { json, svg }: Omit<GraphFlags, 'rotation'>,
): void {
  const carried = slices.map(({ carriedBytesPerToken }) => carriedBytesPerToken);
  const reports = all.map((batches) =>
    rotationReport(batches, slices.length, movedBytes(rotation(batches, slices.length), carried) / batches),
  );
  if (json === true) console.log(JSON.stringify(reports));
  else if (svg === true) console.log(rotationSvg(`${architecture}: rotation of batches over model replicas`, reports));
  else for (const report of reports) printRotation(report);
}

function printRotation({ batches, replicas, movedBytesPerToken, rows }: RotationReport): void {
  const turnsShown = 8;
  const title = `${batches} batches on ${replicas} replica${replicas === 1 ? '' : 's'}: batch.slice, in order`;
  const table = rows.map(({ name, idle, spans }) => ({
    at: name,
    order: spans
      .slice(0, turnsShown)
      .map(({ batch, slice }) => `${batch + 1}.${slice}`)
      .join(' '),
    'idle%': Math.round(100 * idle),
  }));
  printTable(table, title);
  console.log(`${movedBytesPerToken} bytes of carried context per token move between replicas\n`);
}

function reportOf(path: string): GraphReport {
  const files = openModel(path);
  try {
    const slices = sliceReports(buildGraph(files.config));
    return { path, architecture: files.config.architecture, layers: slices.length - 1, slices };
  } finally {
    files.close();
  }
}

function print({ path, architecture, layers, slices }: GraphReport): void {
  console.log(`${path}: ${architecture}, ${layers} layers, ${slices.length} slices\n`);
  for (const group of groupsOf(slices)) {
    console.log(titleOf(group));
    for (const operation of group.operations) console.log(`  ${operation}`);
    for (const [place, { bytesPerToken }] of group.slice.carried.entries())
      console.log(`  carries ${bytesPerToken} bytes per token: ${group.carried[place]}`);
    console.log();
  }
  printTable(attentionRows(slices), 'Attention between the slices, bytes per token in bf16');
}

/** A row for each kind of attention. */
function attentionRows(slices: readonly SliceReport[]): readonly object[] {
  const counts = new Map<string, { readonly attention: AttentionReport; count: number }>();
  for (const { attention } of slices) {
    if (attention === undefined) continue;
    const key = JSON.stringify(attention);
    const known = counts.get(key) ?? { attention, count: 0 };
    known.count++;
    counts.set(key, known);
  }
  return [...counts.values()].map(({ attention, count }) => {
    const { qBytesPerToken: q, kvBytesPerToken: kv, partialBytesPerToken: partial, ...shape } = attention;
    return { layers: count, ...shape, sendQ: q, sendKV: kv, waitPartial: partial };
  });
}
