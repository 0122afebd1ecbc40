// Options of sparse KV: which layers keep how many tokens, and how these are chosen.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import type { BudgetShape } from '../../core/kvcache/sparsity/budgets.ts';
import type { SparsityConfig } from '../../core/kvcache/sparsity/sparse-plan.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { numeric } from './schema-parts.ts';

const tokens = (least: number) => numeric(z.number().int().min(least).max(1_048_576));
const rulePattern = /^(first-n|pyramid|uniform|quest|(full|[1-9]\d*)(,(full|[1-9]\d*))+)$/;

export const sparseFields = {
  sparse: z
    .string()
    .regex(rulePattern, 'write first-n, pyramid, uniform, quest, or a budget of each layer: full,full,1024,512')
    .optional(),
  sparseBudget: tokens(2).optional(),
  sparseFullLayers: tokens(0).optional(),
  sparseWindow: tokens(1).optional(),
  sparseObserve: tokens(1).optional(),
  sparsePooling: z
    .string()
    .regex(/^(max|mean):(1|3|5|7|9|11|13|15)$/, 'write max:7 or mean:5; the width is odd and at most 15')
    .optional(),
  sparseCache: z.enum(['full', 'none']).optional(),
  sparseDecode: z.enum(['replace', 'compact']).optional(),
  sparseTopP: numeric(z.number().gt(0).max(1)).optional(),
};

/** By rule; of others none. */
const defaultFullLayers: Readonly<Record<string, number>> = { 'first-n': 3, quest: 2 };
/** PyramidKV observes as many queries. More of them, or narrower pooling, lose short questions (`kvasir bench sparsity`). */
const defaults = { recent: 32, observed: 8, pooling: { kind: 'max', width: 11 } } as const;
/** Tokens evicted at once by `compact`: a page. */
const compactedTokens = 32;

export type SparseOptions = Readonly<z.infer<z.ZodObject<typeof sparseFields>>>;

/** Checked options of sparse KV, as plain data. */
export interface SparseSettings extends Omit<SparsityConfig, 'shape' | 'slotPagesOfState'> {
  readonly shape: 'uniform' | 'pyramid' | 'list';
  /** Leading layers that keep all tokens. A list names them itself. */
  readonly fullLayers: number;
  /** Of a list: the budget of each layer, or all tokens. */
  readonly list: readonly (number | 'full')[];
}

export function addSparseFlags(command: Command): Command {
  return command
    .optionsGroup(groups.sparse)
    .option(
      '--sparse <rule>',
      'Let requests keep only the important tokens in the layers after the first ones (first-n), in all layers with lower layers keeping more (pyramid), in all alike (uniform), or by a budget of each layer, such as full,full,1024,512; or keep all tokens and read the pages with the highest bounds while decoding (quest) (default: all tokens)',
    )
    .option(
      '--sparse-budget <tokens>',
      'Keep this number of tokens by KV head in each sparse layer, on average, of requests without kv_budget (default: all)',
    )
    .option(
      '--sparse-full-layers <n>',
      'Keep all tokens in this number of first layers (default: 3 with first-n, 2 with quest, else 0)',
    )
    .option('--sparse-window <tokens>', 'Always keep the last tokens (default: 32)')
    .option('--sparse-observe <tokens>', 'Score keys by the last queries of the prompt (default: 8)')
    .option(
      '--sparse-pooling <kind>',
      'Pool the scores of neighbouring tokens by their maximum or mean over a width (default: max:11)',
    )
    .option(
      '--sparse-top-p <mass>',
      'With quest, read fewer pages once their bounds have this share of the softmax of all (default: 1)',
    )
    .addOption(
      new Option(
        '--sparse-cache <kv>',
        'Keep the full KV of the prompt in sparse layers as prefix cache, or free it once the tokens are chosen (default: full)',
      ).choices(['full', 'none']),
    )
    .addOption(
      new Option(
        '--sparse-decode <way>',
        'While decoding, replace the token of the lowest score by each new one, or evict 32 tokens at once (default: replace)',
      ).choices(['replace', 'compact']),
    );
}

/** Options that sparse KV does not work with, in `serve` and `simulate`. */
interface Combined extends Pick<SparseOptions, 'sparse' | 'sparseFullLayers'> {
  readonly borrow: boolean;
  readonly cppGroup?: number | undefined;
}

/** Undefined: every request keeps all tokens. @throws UsageError */
export function servedSparsity(options: SparseOptions & Combined): SparseSettings | undefined {
  const conflict = options.sparse === undefined ? undefined : sparseConflict(options);
  if (conflict !== undefined) throw new UsageError(`Cannot use --sparse ${options.sparse}: ${conflict}`);
  return sparseSettings(options);
}

/** Undefined: every request keeps all tokens. @throws UsageError if the options contradict each other */
export function sparseSettings(
  options: SparseOptions & { readonly kvType?: string | undefined },
): SparseSettings | undefined {
  const { sparse } = options;
  refuseIneffective(options);
  if (sparse === 'quest' && options.kvType === 'q8')
    throw new UsageError(
      'Cannot use --sparse quest: pages of bounds have the type of keys, and --kv-type q8 would round bounds below the keys',
    );
  if (sparse === undefined) return undefined;
  const list = sparse.includes(',')
    ? sparse.split(',').map((entry) => (entry === 'full' ? ('full' as const) : Number(entry)))
    : [];
  return { ...selectionOf(options), ...budgetsOf(options, sparse, list) };
}

/** @throws UsageError for an option that has no effect with this rule */
function refuseIneffective(options: SparseOptions): void {
  const { sparse } = options;
  const ofTokens = ['Window', 'Observe', 'Pooling', 'Cache', 'Decode'] as const;
  const rules = [
    [sparse === undefined, ['Budget', 'FullLayers', 'TopP', ...ofTokens], 'it needs --sparse'],
    [sparse === 'quest', ofTokens, 'with --sparse quest no token is evicted'],
    [sparse !== 'quest', ['TopP'], 'it needs --sparse quest'],
  ] as const;
  for (const [applies, names, why] of rules) {
    const given = applies ? names.find((name) => options[`sparse${name}`] !== undefined) : undefined;
    if (given === undefined) continue;
    throw new UsageError(
      `Cannot use --sparse${given.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}: ${why}`,
    );
  }
}

function budgetsOf(
  { sparseBudget: budget, sparseFullLayers: fullLayers, sparseWindow }: SparseOptions,
  sparse: string,
  list: readonly (number | 'full')[],
): Pick<SparseSettings, 'shape' | 'budget' | 'fullLayers' | 'list' | 'recent'> {
  const recent = sparse === 'quest' ? 0 : (sparseWindow ?? defaults.recent);
  const named = list.length > 0 && (budget !== undefined ? 'budget' : fullLayers !== undefined && 'full-layers');
  if (named) throw new UsageError(`Cannot use --sparse-${named} with --sparse ${sparse}: the list has the budgets`);
  const least = Math.min(...[budget ?? [], list.filter((entry) => entry !== 'full')].flat());
  if (least <= recent)
    throw new UsageError(`Cannot use a budget of ${least} tokens: the last ${recent} are kept beside others`);
  if (list.length > 0 && !list.some((entry) => entry !== 'full'))
    throw new UsageError(`Cannot use --sparse ${sparse}: no layer has a budget`);
  const shape = list.length > 0 ? 'list' : sparse === 'pyramid' ? 'pyramid' : 'uniform';
  return { shape, budget, list, recent, fullLayers: fullLayers ?? defaultFullLayers[sparse] ?? 0 };
}

function selectionOf({ sparse, sparseObserve, sparsePooling, sparseCache, sparseDecode, sparseTopP }: SparseOptions) {
  const [kind, width] = sparsePooling?.split(':') ?? [];
  return {
    pages: sparse === 'quest' ? { topP: sparseTopP ?? 1 } : undefined,
    observed: sparse === 'quest' ? 1 : (sparseObserve ?? defaults.observed),
    pooling: kind === undefined ? defaults.pooling : { kind: kind as 'max' | 'mean', width: Number(width) },
    headReduce: 'max' as const,
    compactEvery: sparseDecode === 'compact' ? compactedTokens : 0,
    keepsFull: sparseCache !== 'none',
  };
}

/** The reason why an instance cannot have sparse layers beside its other options. */
export function sparseConflict(options: Combined): string | undefined {
  const hasFull = hasFullLayers(options);
  const conflicts: readonly (readonly [boolean, string])[] = [
    [
      options.borrow && hasFull,
      'full layers cannot be lent beside sparse ones: remove --borrow, or write --sparse-full-layers 0',
    ],
    [
      options.cppGroup !== undefined && hasFull,
      'pipeline groups divide layers of one kind: remove --cpp-group, or write --sparse-full-layers 0',
    ],
  ];
  return conflicts.find(([applies]) => applies)?.[1];
}

function hasFullLayers({ sparse = '', sparseFullLayers }: Combined): boolean {
  return sparse.includes('full') || (sparseFullLayers ?? defaultFullLayers[sparse] ?? 0) > 0;
}

/** True if requests without `kv_budget` have a KV budget. */
export function budgetByDefault(sparsity: SparseSettings | undefined): boolean {
  return (sparsity?.budget ?? sparsity?.list.find((entry) => entry !== 'full')) !== undefined;
}

/** By layer of the model: true for layers with a budget. @throws UsageError if the layers do not match the model */
export function sparseLayers({ shape, fullLayers, list }: SparseSettings, layers: number): readonly boolean[] {
  if (shape === 'list' && list.length !== layers)
    throw new UsageError(`Cannot use --sparse: it has budgets of ${list.length} layers, the model has ${layers}`);
  if (shape !== 'list' && fullLayers >= layers)
    throw new UsageError(`Cannot use --sparse-full-layers ${fullLayers}: the model has ${layers} layers`);
  return Array.from({ length: layers }, (_, layer) =>
    shape === 'list' ? list[layer] !== 'full' : layer >= fullLayers,
  );
}

/** The budgets of the sparse layers. */
export function budgetShape({ shape, list }: SparseSettings): BudgetShape {
  return shape === 'list' ? list.filter((entry) => entry !== 'full') : shape;
}
