// Several models behind one endpoint: what their headers state, and the pool that loads them on demand.
import { existsSync, statSync } from 'node:fs';
import type { ClusterView, InstancesPort } from '../../../core/protocol/ports.ts';
import { kvShapeOf } from '../../../engine/load-model.ts';
import type { ModelCard, ServedModels } from '../../../gateway/models/served-models.ts';
import { loadNative } from '../../../kernel/native/addon.ts';
import { openModel } from '../../../weights/open-model.ts';
import type { ModelFiles } from '../../../weights/types.ts';
import { computes, defaultInstance, type ModelOptions, type ServeOptions } from '../../options/options.ts';
import { UsageError } from '../../usage-error.ts';
import type { FirstModel } from '../first-request.ts';
import { groupLimits } from '../host/cgroup.ts';
import { defaultKvBytes } from '../kv-memory.ts';
import { contexts, openServing, type ServingOptions } from '../open-serving.ts';
import { locateModel } from './locate-model.ts';
import { parameterCount, tensorBytes } from './model-facts.ts';
import { PooledServing } from './pooled-serving.ts';
import { vectorsOf } from './served-model.ts';

/** Share of the free memory that the models may hold by default. */
const memoryShare = 0.9;
const mebibyte = 2 ** 20;

/** Bytes of a weight by form; those of `native` are the stored ones. */
const weightBytes = { q4: 18 / 32, q8: 34 / 32, bf16: 2, f32: 4 } as const;

/** A value of `--model`: `NAME=MODEL`, or a model; a path that exists has no name. */
export function parseModelName(text: string | undefined): { name: string | undefined; model: string | undefined } {
  const match = text === undefined || existsSync(text) ? null : /^([^=\s]{1,128})=(.+)$/.exec(text);
  return match === null ? { name: undefined, model: text } : { name: match[1], model: match[2] };
}

/** A model whose headers have been read. */
interface FoundModel {
  readonly card: ModelCard;
  readonly first: FirstModel;
  readonly path: string;
  readonly expectedBytes: number;
}

export interface SeveralModels {
  readonly models: ServedModels;
  readonly port: InstancesPort;
  readonly cluster: ClusterView;
  /** For the request that is printed at the start. */
  readonly first: FirstModel;
  /** Start-up lines. */
  readonly lines: readonly string[];
  close(): Promise<void>;
}

/** Reads the headers of all models; weights are read at first requests. @throws UsageError if one alone exceeds the memory */
export async function openSeveralModels(
  texts: readonly string[],
  options: ServeOptions,
  serving: ServingOptions,
): Promise<SeveralModels> {
  const found: FoundModel[] = [];
  for (const text of texts) found.push(await findModel(text, options, serving));
  const bytesMax = options.modelsMemory ?? Math.floor(memoryShare * freeBytes());
  refuseUnfit(found, bytesMax);
  const paths = new Map(found.map(({ card: { id }, path }) => [id, path]));
  const pooled = new PooledServing({
    ...{ models: found, bytesMax, queueMax: options.queue, log: serving.log ?? console.error },
    roles: (options.instances ?? [defaultInstance]).map(({ role }) => role),
    open: async (id) => {
      const opened = await openServing({ ...options, model: paths.get(id) }, { ...serving, servedModelName: id });
      if (options.warmUp ?? true) opened.warmUp();
      return opened;
    },
  });
  const [{ first }] = found as [FoundModel];
  const lines = [
    `Models load at their first request, and together hold at most ${mebibytes(bytesMax)} (--models-memory):`,
    ...found.map(
      ({ card, expectedBytes }) =>
        `Model ${card.id}: ${mebibytes(expectedBytes)}, context ${card.contextTokens} tokens`,
    ),
  ];
  const { clusters } = pooled;
  return { models: pooled, port: clusters, cluster: clusters, first, lines, close: () => pooled.close() };
}

async function findModel(text: string, options: ServeOptions, serving: ServingOptions): Promise<FoundModel> {
  const { name: alias, model } = parseModelName(text);
  const { path, name } = await locateModel(model);
  const files = openModel(path);
  try {
    const instances = (options.instances ?? [defaultInstance]).filter(computes);
    const { context } = contexts(files, options, instances, serving.lending, serving.sparsity);
    const id = alias ?? name ?? files.id;
    const { tokenizer } = files;
    const chatTemplate = tokenizer?.kind === 'gguf' ? tokenizer.data.chatTemplate : tokenizer?.chatTemplate;
    return {
      card: { id, createdS: Math.floor(statSync(files.path).mtimeMs / 1000), contextTokens: context },
      first: { id, tokenizer, chatTemplate, ...vectorsOf(files.config) },
      path,
      expectedBytes: expectedBytes(files, options, context),
    };
  } finally {
    files.close();
  }
}

/** Memory of a model once loaded: weights, and KV and host memory of all instances. */
function expectedBytes(files: ModelFiles, options: ModelOptions & ServeOptions, context: number): number {
  const { weights, inputs, kvType, instances = [defaultInstance] } = options;
  const stored = weights === 'native' ? tensorBytes(files) : parameterCount(files) * weightBytes[weights];
  const { kv } = kvShapeOf(files, { weights, inputs: inputs === 'auto' ? 'bf16' : inputs, kvType, context });
  const computing = instances.filter(computes);
  const kvDefault = defaultKvBytes(kv, context, computing.length);
  const kvBytes = computing.reduce((sum, own) => sum + (own.kvMemory ?? options.kvMemory ?? kvDefault), 0);
  const hostBytes = instances.reduce((sum, own) => sum + (own.hostMemory ?? options.hostMemory ?? 0), 0);
  return Math.ceil(stored + kvBytes + hostBytes);
}

/** @throws UsageError */
function refuseUnfit(found: readonly FoundModel[], bytesMax: number): void {
  const ids = found.map(({ card }) => card.id);
  const twice = ids.find((id, i) => ids.indexOf(id) < i);
  if (twice !== undefined)
    throw new UsageError(`Cannot serve two models as '${twice}': write --model NAME=MODEL for one of them`);
  for (const { card, expectedBytes: bytes } of found)
    if (bytes > bytesMax)
      throw new UsageError(
        `Cannot serve model '${card.id}': it needs ${mebibytes(bytes)}, all models may hold ${mebibytes(bytesMax)} (--models-memory); --kv-memory and --context change what it needs`,
      );
}

function freeBytes(): number {
  const ofMachine = loadNative()?.memoryInfo().availableBytes ?? Number.POSITIVE_INFINITY;
  return Math.min(ofMachine, groupLimits().availableBytes ?? Number.POSITIVE_INFINITY);
}

function mebibytes(bytes: number): string {
  return `${Math.ceil(bytes / mebibyte)} MiB`;
}
