// `kvasir graph`: how a model is cut into slices for model workers, with attention between them.
import { Command, Option } from 'commander';
import { type AttentionReport, groupsOf, type SliceReport, sliceReports, titleOf } from '../../graph/slice-report.ts';
import { buildGraph } from '../../models/registry.ts';
import { openModel } from '../../weights/open-model.ts';
import { embeddedModel } from '../package-root.ts';
import { locateCached } from '../serve/model/locate-model.ts';
import { printTable } from '../terminal/table.ts';
import { type GraphReport, slicesSvg } from './graph-svg.ts';

export function graphCommand(): Command {
  return new Command('graph')
    .description('Print the slices of a model for model workers and attention workers')
    .argument('[model]', 'GGUF file, Hugging Face directory, or a cached model of the hub (default: kvasir-tiny)')
    .option('--json', 'Print one JSON object')
    .addOption(new Option('--svg', 'Print a picture of the slices as SVG').conflicts('json'))
    .action((model: string | undefined, { json, svg }: { json?: boolean; svg?: boolean }) => {
      const report = reportOf(model === undefined ? embeddedModel : locateCached(model));
      if (json === true) console.log(JSON.stringify(report));
      else if (svg === true) console.log(slicesSvg(report));
      else print(report);
    });
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
