// Opens a model for serving: its text side on this thread, its engine on a worker thread.
import type { PublishedBlocks } from '../../core/fleet/published-blocks.ts';
import { budgetMin } from '../../core/kvcache/sparsity/budgets.ts';
import type { AdmissionSettings } from '../../core/router/admission/length-admission.ts';
import type { PlacementKind } from '../../core/router/placement/placement.ts';
import type { PipelineSettings } from '../../core/router/placement/placer.ts';
import { kvTypeOf } from '../../engine/forms.ts';
import type { ServedModel } from '../../gateway/http/served-model.ts';
import { LiveCluster } from '../../runtime/threads/live-cluster.ts';
import type { Transport } from '../../runtime/transfer/messenger.ts';
import { kvTokenBytes } from '../../util/kv-type.ts';
import { pageTokens } from '../../util/step.ts';
import { openModel } from '../../weights/open-model.ts';
import type { ModelFiles } from '../../weights/types.ts';
import type { AttentionWorkersSettings } from '../options/attention-worker-settings.ts';
import { type LendingRules, lentBytes, withHostMemory } from '../options/lending-rules.ts';
import { computes, defaultInstance, type InstanceOptions, type ModelOptions } from '../options/options.ts';
import { budgetByDefault, type SparseSettings, sparseLayers } from '../options/sparse-options.ts';
import { UsageError } from '../usage-error.ts';
import { blockKeyOf } from './block-key.ts';
import { ssdSizeFor, type TierOptions, tierSettings } from './instance-tiers.ts';
import { managerSettings, requestKvBytes } from './live-borrowing.ts';
import { locateModel } from './model/locate-model.ts';
import { contextTokens } from './model/served-model.ts';
import { openTextOrClose, openTextSide, type TextSide } from './model/text-side.ts';
import type { InstanceSettings, LenderMemory } from './worker-settings.ts';

export interface Serving extends TextSide {
  readonly cluster: LiveCluster;
}

export interface ServingOptions extends TierOptions {
  /** Requests accepted at once. */
  readonly queue: number;
  readonly servedModelName?: string | undefined;
  /** Seconds; default: no limit of a request. */
  readonly requestTimeout?: number | undefined;
  /** Seconds; default: that of instance threads. */
  readonly watchdog?: number | undefined;
  /** Settings of each instance that override the model options; default: one instance. */
  readonly instances?: readonly InstanceOptions[] | undefined;
  /** SLOs and admission policy; default: none. */
  readonly admission?: AdmissionSettings | undefined;
  /** Records steps for traces. */
  readonly traces?: boolean;
  /** Instances read the vocabulary of grammars at the start; default: at the first request with one. */
  readonly warmsGrammars?: boolean | undefined;
  /** Share of the KV memory of each instance for pinned prefixes; default: 0. */
  readonly pinMemory?: number | undefined;
  /** Maximum predicted time of a step that decodes and prefills; default: 50. */
  readonly stepMs?: number | undefined;
  readonly transport?: Transport | undefined;
  /** Sends prompts after their prefill, not layer by layer. */
  readonly sendsAtEnd?: boolean | undefined;
  /** (instances): records of their steps. */
  readonly records?: readonly SharedArrayBuffer[] | undefined;
  /** Threads keep the process alive until they end; default: true. */
  readonly holdsProcess?: boolean;
  /** Placement policy; default: by cache and load. */
  readonly placement?: PlacementKind | undefined;
  /** Hot prefixes are also copied before a prompt fetches them; default: false. */
  readonly copyHotPrefixes?: boolean | undefined;
  /** Receives log lines; default: stderr. */
  readonly log?: (message: string) => void;
  /** Rules of memory lending; undefined: none. */
  readonly lending?: LendingRules | undefined;
  /** Attention workers of the instance that decodes; undefined: none. */
  readonly attentionWorkers?: AttentionWorkersSettings | undefined;
  /** Layers that keep only some tokens; undefined: none. */
  readonly sparsity?: SparseSettings | undefined;
  /** Receives the blocks of the instances, to publish them; undefined: none are published. */
  readonly kvEvents?: PublishedBlocks | undefined;
  /** Settings of pipeline groups; undefined: none. */
  readonly pipeline?: PipelineSettings | undefined;
}

/** Settings of instances without own ones. */
type SharedOptions = ModelOptions & Pick<TierOptions, 'hostMemory'>;

const admitAll: AdmissionSettings = { kind: 'none', slo: undefined, decodeUs: 0 };

export async function openServing(options: ModelOptions, serving: ServingOptions): Promise<Serving> {
  const {
    queue,
    servedModelName,
    instances = [defaultInstance],
    transport = 'auto',
    admission = admitAll,
    pinMemory = 0,
    traces = false,
    stepMs,
  } = serving;
  const { path, name } = await locateModel(options.model);
  const files = openModel(path);
  try {
    const { lending } = serving;
    const computing = instances.filter(computes);
    const shared = { ...options, hostMemory: serving.hostMemory };
    const { context, home } = contexts(files, shared, computing, lending, serving.sparsity);
    const kvBudget = budgetRange(serving.sparsity, files, context);
    const lenders = lendersOf(instances, shared, lending);
    const folder = serving.ssd ?? instances.find(({ ssd }) => ssd !== undefined)?.ssd;
    const tiers = withSsdSize(serving, files, context, options);
    // The workers pack weights while this thread builds the tokenizer.
    const cluster = new LiveCluster({
      entry: new URL('./instance-worker.js', import.meta.url),
      instances: instances.map((own, i) => ({
        ...{ role: own.role, keepsRole: own.role !== 'prefill' && serving.attentionWorkers !== undefined },
        settings: {
          ...instanceSettings(options, own, path, context, computing.length, { pinMemory, stepMs }),
          tiers: tierSettings(tiers.options, i, instances.length, own),
          record: serving.records?.[i],
          sendsAtEnd: serving.sendsAtEnd,
          attentionWorkers: own.role === 'prefill' ? undefined : serving.attentionWorkers,
          ...{ sparse: serving.sparsity, warmsGrammars: serving.warmsGrammars },
          lending: lending && { lenders, rules: withHostMemory(lending, own.hostMemory ?? serving.hostMemory) },
        },
      })),
      hashKey: folder === undefined ? undefined : blockKeyOf(folder),
      transport,
      traces,
      ...{ restarts: true, holdsProcess: serving.holdsProcess },
      ...timesOf(serving),
      admission,
      stepUs: stepMs && 1000 * stepMs,
      ...{ queueMax: queue, placement: serving.placement, copiesHotPrefixes: serving.copyHotPrefixes },
      pipeline: serving.pipeline && { ...serving.pipeline, budgetByDefault: budgetByDefault(serving.sparsity) },
      lending: lending && managerSettings(lending),
      kvEvents: serving.kvEvents,
      log: serving.log ?? console.error,
    });
    const text = await openTextOrClose(cluster, () => openTextSide(files, path, context, servedModelName ?? name));
    const model = { ...text.model, homeTokens: home, kvBudget, ...sizesOf(files, options) };
    const close = async (): Promise<void> => {
      await Promise.all([cluster.close(), text.close()]);
    };
    return { ...text, model, notes: [...text.notes, ...tiers.notes], cluster, close };
  } finally {
    files.close();
  }
}

function timesOf({ requestTimeout, watchdog }: ServingOptions) {
  const microseconds = (s: number | undefined): number | undefined => (s === undefined ? undefined : s * 1e6);
  return { requestTimeoutUs: microseconds(requestTimeout), watchdogUs: microseconds(watchdog) };
}

/** The tiers with the SSD that `--ssd` alone allocates, and a line that says so. */
function withSsdSize(
  serving: ServingOptions,
  { config }: ModelFiles,
  context: number,
  forms: ModelOptions,
): { readonly options: TierOptions; readonly notes: readonly string[] } {
  const { ssd, ssdSize: given } = serving;
  if (ssd === undefined || given !== undefined) return { options: serving, notes: [] };
  const ssdSize = ssdSizeFor(config, context, kvTypeOf(forms));
  const size = `${(ssdSize / 1e6).toFixed(0)} MB of SSD in ${ssd}`;
  return {
    options: { ...serving, ssdSize },
    notes: [`Allocated ${size}: the KV of up to 64 contexts; --ssd-size changes it`],
  };
}

/** Memory of each instance that lends; a store has none. */
function lendersOf(
  instances: readonly InstanceOptions[],
  shared: SharedOptions,
  lending: LendingRules | undefined,
): LenderMemory[] {
  return instances.map((own) => ({
    kvBytes: computes(own) ? (own.kvMemory ?? shared.kvMemory) : 0,
    hostBytes: computes(own) ? lentOf(shared, own, lending) : 0,
  }));
}

/** The budgets that requests may ask for; a list fixes them. @throws UsageError if the model has no such layers */
export function budgetRange(
  sparsity: SparseSettings | undefined,
  { config }: ModelFiles,
  context: number,
): ServedModel['kvBudget'] {
  if (sparsity === undefined) return undefined;
  const { shape, recent } = sparsity;
  const { attention, positions } = config;
  const isSparse = sparseLayers(sparsity, config.layers);
  const slides = (layer: number): boolean =>
    attention.window !== undefined && attention.window < context && attention.layers?.[layer] !== 'full';
  const refuse = (why: string): never => {
    throw new UsageError(`Cannot use --sparse: ${why}`);
  };
  if (positions.kind === 'alibi') refuse('kept tokens have no ALiBi positions, which the model has');
  if (shape === 'list' && isSparse.some((sparse, layer) => sparse && slides(layer)))
    refuse('layers with a window keep their window: write full for these layers');
  if (!isSparse.some((sparse, layer) => sparse && !slides(layer))) refuse('every layer of the model has a window');
  return shape === 'list' ? { least: undefined, most: undefined } : { least: budgetMin(recent), most: context };
}

/** Context limit of a request, and with borrowing, that of a request on one instance alone. @throws UsageError */
export function contexts(
  files: ModelFiles,
  options: SharedOptions,
  instances: readonly InstanceOptions[],
  lending: LendingRules | undefined,
  sparsity?: SparseSettings,
): { readonly context: number; readonly home: number | undefined } {
  const least = smallestKvMemory(options, instances);
  const home = () => contextTokens(files, { ...options, context: undefined, kvMemory: least });
  // Memory bounds prompts alone: instances refuse those that they cannot hold.
  if (boundsOutputs(sparsity))
    return { context: contextTokens(files, { ...options, kvMemory: undefined }), home: home() };
  if (lending === undefined) return { context: contextTokens(files, { ...options, kvMemory: least }), home: undefined };
  const kvMemory = withLoans(files, options, instances, lending);
  return {
    context: contextTokens(files, { ...options, kvMemory }),
    home: home(),
  };
}

/** True if every request evicts tokens by default, so that its output takes little memory. */
export function boundsOutputs(sparsity: SparseSettings | undefined): boolean {
  return sparsity !== undefined && sparsity.pages === undefined && (sparsity.budget ?? sparsity.list[0]) !== undefined;
}

/** KV memory of the smallest instance; undefined if it follows from the context. */
function smallestKvMemory({ kvMemory }: ModelOptions, instances: readonly InstanceOptions[]): number | undefined {
  const given = instances.flatMap((own) => own.kvMemory ?? kvMemory ?? []);
  return given.length === 0 ? undefined : Math.min(...given);
}

/** Sizes of keys and values. */
export function sizesOf(
  files: ModelFiles,
  options: Pick<ModelOptions, 'inputs' | 'kvType'>,
): Pick<ServedModel, 'kvTokenBytes' | 'shape'> {
  const { layers, heads, headDim } = files.config;
  return { kvTokenBytes: allLayersBytes(files, options), shape: { layers, heads, headDim } };
}

/** Bytes of keys and values of one token in all layers. */
function allLayersBytes({ config }: ModelFiles, options: Pick<ModelOptions, 'inputs' | 'kvType'>): number {
  return config.layers * kvTokenBytes(config, kvTypeOf(options));
}

/** KV memory of a request with borrowing; undefined if that of an instance follows from the context. */
function withLoans(
  files: ModelFiles,
  options: SharedOptions,
  instances: readonly InstanceOptions[],
  lending: LendingRules,
): number | undefined {
  const given = instances.flatMap((own) => {
    const kvBytes = own.kvMemory ?? options.kvMemory;
    return kvBytes === undefined ? [] : { kvBytes, hostBytes: lentOf(options, own, lending) };
  });
  if (given.length < instances.length) return undefined;
  const blockBytes = allLayersBytes(files, options) * pageTokens;
  return requestKvBytes(given, blockBytes, lending);
}

/** Host memory of an instance for blocks of sequences. */
function lentOf(options: SharedOptions, own: InstanceOptions, lending: LendingRules | undefined): number {
  return lentBytes({ hostMemory: own.hostMemory ?? options.hostMemory, lendHost: lending?.lendHost });
}

/** Divides the threads among the instances. */
export function instanceSettings(
  options: ModelOptions,
  own: InstanceOptions,
  model: string,
  context: number,
  instances: number,
  { pinMemory = 0, stepMs }: { readonly pinMemory?: number; readonly stepMs?: number | undefined } = {},
): InstanceSettings {
  return {
    model,
    weights: options.weights,
    inputs: options.inputs,
    kvType: options.kvType,
    threads: own.threads ?? Math.max(1, Math.floor(options.threads / instances)),
    contextTokens: context,
    kvBytes: own.kvMemory ?? options.kvMemory,
    instances,
    stepUs: stepMs && 1000 * stepMs,
    pinShare: pinMemory,
    eviction: options.eviction,
    warmsUp: options.warmUp ?? true,
  };
}
