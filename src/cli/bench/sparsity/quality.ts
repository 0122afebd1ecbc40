// `kvasir bench sparsity`: the loss of quality when a model reads only a part of the KV of its prompts.
import { readFileSync } from 'node:fs';
import { Command } from 'commander';
import { z } from 'zod';
import {
  benchSparsity,
  profileSparsity,
  type SparsityProfileReport,
  type SparsityReport,
  sparsityTasks,
} from '../../../bench/sparsity/bench.ts';
import { type ChoiceCase, parseChoices } from '../../../bench/sparsity/choices.ts';
import { sparsityMethods } from '../../../bench/sparsity/methods.ts';
import { recallPlot } from '../../../bench/sparsity/plot.ts';
import { recallTasks } from '../../../bench/sparsity/recall.ts';
import type { SelectionRules } from '../../../bench/sparsity/sparse-steps.ts';
import { round } from '../../../bench/statistics.ts';
import { textOf } from '../../../engine/model-text.ts';
import { pageTokens } from '../../../util/step.ts';
import { openModel } from '../../../weights/open-model.ts';
import { modelFlag, modelOptionsSchema, readOptions } from '../../options/options.ts';
import { withBackend } from '../../serve/backend.ts';
import { locateModel } from '../../serve/model/locate-model.ts';
import { checkOutputs, writeOutput } from '../../simulate/outputs/output-file.ts';
import { printTable } from '../../terminal/table.ts';
import { UsageError } from '../../usage-error.ts';
import { count, counts, list, progress, threadsFlag } from '../options.ts';

const schema = modelOptionsSchema.pick({ model: true, threads: true }).extend({
  methods: list(z.enum(sparsityMethods), ['full', 'pyramid', 'quest', 'window', 'random', 'oracle']),
  budgets: list(z.coerce.number().gt(0).max(1), [0.5, 0.25, 0.12]),
  tasks: list(z.enum(sparsityTasks), ['needle', 'perplexity']),
  needles: list(z.enum(recallTasks), recallTasks),
  depths: counts(0, [0, 25, 50, 75, 100]),
  tokens: count(512),
  cases: count(4),
  continuation: count(64),
  seed: z.coerce.number().int().min(0).default(0),
  text: z.string().optional(),
  choices: z.string().optional(),
  observe: counts(1, [8]),
  window: count(16),
  fullLayers: z.coerce.number().int().min(0).optional(),
  pooling: list(z.string().regex(/^(max|mean):\d*[13579]$/, 'write max:11 or mean:5; the width is odd'), ['max:11']),
  headReduce: list(z.enum(['max', 'mean']), ['max']),
  topP: z.coerce.number().gt(0).max(1).default(1),
  decode: z.enum(['keep', 'replace', 'compact']).default('keep'),
  plot: z.string().optional(),
  mass: z.coerce.number().gt(0).lt(1).default(0.9),
});

/** Tokens evicted at once: those of a page, as in serving. */
const evictions = { keep: 'none', replace: 0, compact: pageTokens } as const;

export function sparsityCommand(): Command {
  return withFlags(new Command('sparsity')).action(
    async ({ json, profile, ...flags }: { json?: boolean; profile?: boolean } & Record<string, unknown>) => {
      const parsed = readOptions(schema, flags);
      const {
        model,
        threads,
        text,
        choices,
        needles,
        decode,
        mass,
        plot,
        observe: _,
        pooling: __,
        ...options
      } = parsed;
      checkOutputs({ plot });
      const selections = selectionsOf(parsed);
      if (plot !== undefined && selections.length > 1)
        throw new UsageError('Cannot use --plot: state one --observe, --pooling and --head-reduce');
      if (options.tasks.includes('choice') && choices === undefined)
        throw new UsageError('Cannot measure choice: --choices is missing');
      const questions = choices === undefined ? [] : readChoices(choices);
      const files = openModel((await locateModel(model)).path);
      try {
        const tokenizer = textOf(files)?.tokenizer;
        if (tokenizer === undefined) throw new UsageError(`Cannot measure: model '${files.id}' has no tokenizer`);
        const bench = {
          ...options,
          fullLayers: options.fullLayers,
          inputs: 'bf16' as const,
          files,
          tokenizer,
          recallTasks: needles,
          text: text === undefined ? undefined : readText(text),
          choices: questions,
          ...selections[0],
          selections,
          eviction: evictions[decode],
          onProgress: progress,
        };
        withBackend(threads, (backend) => {
          if (profile === true) printProfile(profileSparsity(backend, bench, mass), json);
          else printScores(writePlot(benchSparsity(backend, bench), plot, Math.min(...options.budgets)), json);
        });
      } finally {
        files.close();
      }
    },
  );
}

/** Every combination of the stated rules. */
function selectionsOf({ observe, pooling, headReduce, window }: z.infer<typeof schema>): readonly SelectionRules[] {
  const poolings = pooling.map((text) => {
    const [kind, width] = text.split(':');
    return { kind: kind === 'max' ? ('max' as const) : ('mean' as const), width: Number(width) };
  });
  return observe.flatMap((observed) =>
    poolings.flatMap((pool) =>
      headReduce.map((heads) => ({ observed, recent: window, pooling: pool, headReduce: heads })),
    ),
  );
}

function withFlags(command: Command): Command {
  return command
    .addOption(modelFlag())
    .option(
      '--methods <list>',
      `Compare these of ${sparsityMethods.join(', ')} (default: full,pyramid,quest,window,random,oracle)`,
    )
    .option('--budgets <list>', 'Keep these shares of the tokens of a prompt (default: 0.5,0.25,0.12)')
    .option('--tasks <list>', `Measure these of ${sparsityTasks.join(', ')} (default: needle,perplexity)`)
    .option('--needles <list>', `Recall tasks of needle: ${recallTasks.join(', ')} (default: all)`)
    .option('--depths <list>', 'Place facts at these percentages of the text (default: 0,25,50,75,100)')
    .option('--tokens <n>', 'Tokens of a prompt (default: 512)')
    .option('--cases <n>', 'Prompts for each task and depth (default: 4)')
    .option('--continuation <n>', 'Tokens after a prompt, for perplexity and agreement (default: 64)')
    .option('--seed <n>', 'Seed of the prompts and of the random method (default: 0)')
    .option('--text <file>', 'UTF-8 text for perplexity and agreement (default: generated sentences)')
    .option('--choices <file>', 'JSONL file for choice: prompt, choices, and answer, the index of the right one')
    .option('--observe <list>', 'Score keys by these numbers of last queries of the prompt, compared (default: 8)')
    .option('--window <tokens>', 'Always keep the last tokens (default: 16)')
    .option(
      '--full-layers <n>',
      'Keep all tokens in this number of first layers (default: 3 with first-n, 2 with quest, else 0)',
    )
    .option(
      '--pooling <list>',
      'Pool the scores of neighbouring tokens by their maximum or mean over an odd width; several, max:11,mean:5, are compared (default: max:11)',
    )
    .option(
      '--head-reduce <list>',
      'Reduce scores over the query heads of a KV head by max or mean; both are compared (default: max)',
    )
    .option('--top-p <mass>', 'With quest, read fewer pages where their bounds reach this mass (default: 1)')
    .option(
      '--decode <way>',
      'After the prompt keep all kept tokens, replace one by each new one, or compact: evict 32 at once (default: keep)',
    )
    .option('--plot <file>', 'Write recall by budget and by depth, at the smallest budget, as SVG')
    .option('--profile', 'Report how attention concentrates on keys, and propose full layers and budgets')
    .option('--mass <share>', 'Propose budgets that keep this share of the attention (default: 0.9)')
    .addOption(threadsFlag())
    .option('--json', 'Print one JSON object');
}

function printScores(report: SparsityReport, json = false): void {
  if (json) {
    console.log(JSON.stringify(report));
    return;
  }
  const { rows, ...facts } = report;
  printTable([facts], 'Model and prompts');
  printTable(rows, 'Scores in percent, higher is better');
}

/** Returns the report. */
function writePlot(report: SparsityReport, path: string | undefined, budget: number): SparsityReport {
  const svg = path === undefined ? undefined : recallPlot(report.rows, round(100 * budget));
  if (path !== undefined && svg === undefined) throw new UsageError('Cannot plot: no recall is measured');
  if (path !== undefined && svg !== undefined) writeOutput(path, svg);
  return report;
}

function printProfile(report: SparsityProfileReport, json = false): void {
  if (json) {
    console.log(JSON.stringify(report));
    return;
  }
  const { heads, layers, budgets, ...facts } = report;
  printTable([{ ...facts, budgets: budgets.join(' ') }], 'Model, prompts and proposal');
  printTable(layers.map(listed), 'Attention by layer, in percent');
  printTable(heads.map(listed), 'Attention by head, in percent');
}

function listed<Row extends { readonly positions: readonly number[] }>(row: Row) {
  return { ...row, positions: row.positions.join(' ') };
}

function readChoices(path: string): ChoiceCase[] {
  const text = readText(path);
  try {
    return parseChoices(text);
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw new UsageError(`Cannot read text ${path}: ${error instanceof Error ? error.message : 'unreadable'}`);
  }
}
