// Entry of an instance thread: kernels, weights, engine, scheduler and loop.
import { platform, setPriority } from 'node:os';
import { isMainThread, workerData } from 'node:worker_threads';
import { createTokenInstance, type TokenInstance } from '../../core/instance/token-instance.ts';
import { pagesFor } from '../../core/kvcache/layer-groups.ts';
import type { SparsityConfig } from '../../core/kvcache/sparsity/sparse-plan.ts';
import type { RequestId } from '../../core/protocol/ids.ts';
import { batchLimits, batchLimitsWith, encoderLimits } from '../../core/scheduler/executor/token-limits.ts';
import type { HandOffConfig } from '../../core/transfer/hand-off/hand-offs.ts';
import { Engine } from '../../engine/engine.ts';
import { chooseInputs } from '../../engine/forms.ts';
import { type LoadedModel, loadModel } from '../../engine/load-model.ts';
import { warmUp } from '../../engine/warm-up.ts';
import type { LayerSpan } from '../../graph/pipeline-stage.ts';
import type { Backend, Isa } from '../../kernel/backend.ts';
import { loadNative } from '../../kernel/native/addon.ts';
import { overAttentionWorkers } from '../../runtime/attention-workers/staggered-steps.ts';
import { MemoryBus } from '../../runtime/bus/memory-bus.ts';
import { GrammarMatchers } from '../../runtime/grammars/grammar-matchers.ts';
import { PipelineRunner } from '../../runtime/pipeline/pipeline-runner.ts';
import { nowUs } from '../../runtime/threads/alarm.ts';
import { collectOnRequest } from '../../runtime/threads/garbage-collection.ts';
import { InstanceLoop } from '../../runtime/threads/instance-loop.ts';
import { PagesAhead } from '../../runtime/threads/pages-ahead.ts';
import { recorded } from '../../runtime/threads/step-record.ts';
import { StepTracer } from '../../runtime/threads/step-tracer.ts';
import { publishTo, type ThreadEndpoint } from '../../runtime/threads/thread-bus.ts';
import type { BlockRoot, FromInstance, InstanceThreadData } from '../../runtime/threads/thread-protocol.ts';
import type { LiveHandOffs } from '../../runtime/transfer/live-hand-offs.ts';
import { pageTokens, slotPagesOfState } from '../../util/step.ts';
import { openModel } from '../../weights/open-model.ts';
import { budgetShape, sparseLayers } from '../options/sparse-options.ts';
import {
  cacheParts,
  defaultInstanceBytes,
  openAttentionWorkers,
  pulledPages,
  replicaThreads,
} from './attention/attention-workers.ts';
import { createBackend } from './backend.ts';
import { blockRoot } from './block-root.ts';
import {
  createActivationTransfer,
  createHandOffs,
  createMessenger,
  createThreadLog,
  fetchBytesPerToken,
  hasWindows,
  lenderRoutes,
} from './instance-links.ts';
import { openTiers, tierSizes } from './instance-tiers.ts';
import { borrowingPages, openBorrowing } from './live-borrowing.ts';
import { createStore, type ServedInstance } from './store-instance.ts';
import type { InstanceSettings } from './worker-settings.ts';

const computeNiceness = 5;

/** Opens the model and packs its weights. A model worker packs only layers that its programs merge in another way. */
function load(
  { settings, loaded }: InstanceThreadData<InstanceSettings>,
  backend: Backend,
): { readonly model: LoadedModel; readonly root: BlockRoot } {
  if (loaded !== undefined && settings.attentionWorkers === undefined) return loaded;
  const files = openModel(settings.model);
  try {
    const { weights, inputs, kvType, contextTokens: context, attentionWorkers, sparse } = settings;
    const attention = attentionWorkers === undefined ? 'pages' : 'workers';
    const layers = sparse && sparseLayers(sparse, files.config.layers);
    const forms = { weights, inputs, kvType, context, attention, sparseLayers: layers } as const;
    const model = loadModel({ model: files, backend, ...forms, sharedWith: loaded?.model });
    const root = blockRoot(files, { weights, inputs: model.inputs, kvType }, layers);
    return { model, root };
  } finally {
    files.close();
  }
}

async function create(data: InstanceThreadData<InstanceSettings>, own: ThreadEndpoint): Promise<ServedInstance> {
  const { settings, hashKey, role } = data;
  const log = createThreadLog(own);
  const backend = createBackend(replicaThreads(settings), log);
  const { model, root } = load(data, backend);
  const { contextTokens, kvBytes = defaultInstanceBytes(settings, model.kv) } = settings;
  const ownReceivePages = data.receivesPrompts ? receivePagesOf(settings, model) : 0;
  const receivePages = ownReceivePages * cacheParts(settings.attentionWorkers);
  const sizes = tierSizes(settings, model.kv);
  const lent = borrowingPages(settings, model.kv);
  const otherPages = receivePages + lent.staging + (sizes?.pages ?? 0) + lent.host;
  const bytes = { kvBytes: kvBytes + otherPages * model.kv.pageBytes, receivePages };
  const attentionWorkers = await openAttentionWorkers(settings, backend, model, bytes, log);
  const engine = createEngine(model, backend, settings, bytes.kvBytes, attentionWorkers?.pages);
  const wake = (): void => loop.wake();
  const memory = { kv: model.kv, pool: engine.pool, layers: engine.layers };
  const place = { ...memory, isa: backend.isa, root, hashKey, log };
  const tiers = sizes && openTiers(settings.tiers?.ssd, { ...place, sizes }, wake);
  const borrowing = openBorrowing(settings, {
    ...{ routes: lenderRoutes(data.lender, own), pages: data.pages, engine, backend },
    messenger: () => createMessenger(data.pages, engine.pool, wake),
    host: {
      pageTable: () => machine.pools[0]?.pageTable ?? new Int32Array(0),
      finishLoads: () => tiers?.live.finishLoads(),
      isRead: (pages) => handOffs?.isRead(pages) === true,
    },
  });
  const machine = createTokenInstance({
    pages: engine.pages - otherPages,
    ...{ groups: model.kv.groups, eviction: settings.eviction, ...planningOf(settings, model) },
    // The conductor on the gateway thread refuses requests.
    queueMax: Number.MAX_SAFE_INTEGER,
    // Block ids cannot be forged without the key.
    ...{ root, hashKey },
    handOff: handOffOf(settings, ownReceivePages),
    incarnation: data.incarnation,
    ...{ contents: { onSsd: undefined }, ...tiers?.machine, ...borrowing?.machine },
    ...{ aheadOfUse: aheadOfUse(settings, backend), ssdReadUs: tiers?.live.readUs },
    ...{ ...attentionWorkers?.machine, sparsity: sparsityConfig(settings, model.kv) },
    ...{ pinShare: settings.pinShare, isBackpressured: (id: RequestId) => pipeline?.isBackpressured(id) === true },
  });
  const handOffs = openHandOffs(data, own, memory, wake, { backend, workers: attentionWorkers, receivePages });
  const tracer = new StepTracer(data.traces);
  const steps = stepsOf(engine, machine, settings, attentionWorkers);
  const pipeline = handOffs && createPipeline(data, { engine, backend, model }, handOffs, wake);
  const pagesAhead = attentionWorkers === undefined ? prepareMemory(engine, backend, settings) : undefined;
  const below = { tiers: tiers?.live, lending: borrowing?.live, attentionWorkers: attentionWorkers?.live, pagesAhead };
  const parts = { handOffs, pipeline, tracer, ...below, grammars: openGrammars(data, model, wake) };
  const loop = new InstanceLoop(machine, steps, own, data.abort, log, parts);
  const description = {
    ...describe(settings, backend, model),
    kvBytes: (engine.pages - (sizes?.pages ?? 0) - lent.host) * model.kv.pageBytes,
    tiers: tiers?.description,
    lends: borrowing?.lends,
    ...{ capacityTokens: longestTokens(machine, contextTokens), role, pagesAddress: handOffs?.address },
  };
  // Pages of the reference backend belong to this thread.
  const isShared = backend.isa !== 'reference' && attentionWorkers === undefined;
  return { loop, ready: { description, root, shared: isShared ? model : undefined } };
}

/** Returns what touches pages ahead of their use; undefined if no memory is cleared at its first use. */
function prepareMemory(engine: Engine, { isa }: Backend, { warmsUp }: InstanceSettings): PagesAhead | undefined {
  if (isa === 'reference') return undefined;
  if (warmsUp) warmUp(engine, nowUs);
  const { kvHeads, headDim, pageBytes } = engine.model.kv;
  return new PagesAhead(engine, 2 * kvHeads * pageTokens * headDim, pageBytes);
}

/** Without a warm-up, threads start with the first request that has a grammar. */
function openGrammars(
  { settings, role }: InstanceThreadData<InstanceSettings>,
  { config }: LoadedModel,
  wake: () => void,
): GrammarMatchers {
  const entry = new URL('./model/grammar-worker.js', import.meta.url);
  const matchers = new GrammarMatchers(entry, settings.model, config.vocabSize, batchLimits.logitRowsMax, wake);
  if (settings.warmsGrammars === true && role !== 'prefill' && config.encoder === undefined) matchers.warmUp();
  return matchers;
}

/** Those of the longest prompt, so that every prompt can be received. Kept tokens take pages of states besides, if the budget is as long as the prompt. */
function receivePagesOf({ contextTokens, sparse }: InstanceSettings, { kv }: LoadedModel): number {
  const pages = pagesFor(kv.groups, contextTokens, pageTokens);
  const { slotPagesOfState: perState = Number.POSITIVE_INFINITY } = sparsityConfig({ sparse }, kv) ?? {};
  return sparse === undefined
    ? pages
    : pages + Math.ceil(pages / perState) + kv.groups.reduce((sum, { layers }) => sum + 2 * layers, 1);
}

/** Requests with a KV budget may be longer than the memory of all their tokens. */
function longestTokens({ capacityTokens, components }: TokenInstance, contextTokens: number): number {
  return Math.max(capacityTokens, Math.min(contextTokens, components.sparseKv?.longestTokens ?? 0));
}

function sparsityConfig(
  { sparse }: Pick<InstanceSettings, 'sparse'>,
  kv: LoadedModel['kv'],
): SparsityConfig | undefined {
  return sparse && { ...sparse, shape: budgetShape(sparse), slotPagesOfState: slotPagesOfState(kv.headDim, kv.type) };
}

/** The engine as the loop runs it. */
function stepsOf(
  engine: Engine,
  machine: TokenInstance,
  { record }: InstanceSettings,
  workers: Awaited<ReturnType<typeof openAttentionWorkers>>,
): Pick<Engine, 'run'> {
  const predictUs = (shape: Parameters<TokenInstance['predictUs']>[0]): number => machine.predictUs(shape);
  const runner =
    workers === undefined ? engine : overAttentionWorkers(engine, workers.live, predictUs, workers.replicas);
  return record === undefined ? runner : recorded(runner, record);
}

interface ReceivingMemory {
  readonly backend: Backend;
  readonly workers: Awaited<ReturnType<typeof openAttentionWorkers>>;
  /** Pages for prompts of other instances. */
  readonly receivePages: number;
}

/** With attention workers, prompts are received in a staging pool. */
function openHandOffs(
  data: InstanceThreadData<InstanceSettings>,
  own: ThreadEndpoint,
  memory: Parameters<typeof createHandOffs>[2],
  wake: () => void,
  { backend, workers, receivePages }: ReceivingMemory,
): LiveHandOffs | undefined {
  if (backend.isa === 'reference' && !data.receivesPrompts) return undefined;
  if (workers === undefined) return createHandOffs(data, own, memory, wake);
  // Other instances fetch no prefixes from attention workers.
  if (data.peers === 'none' || receivePages === 0) return undefined;
  const { type, kvHeads, headDim } = memory.kv;
  const pool = backend.createKvPool({ pages: receivePages, type, kvHeads, headDim });
  const staging = { handle: pool, pages: receivePages };
  return createHandOffs(data, own, { ...memory, pool }, wake, (messenger) =>
    pulledPages(workers, staging, messenger, wake),
  );
}

/** Limits of a step; an encoder computes each prompt in one. */
function planningOf({ stepUs, contextTokens }: InstanceSettings, { config }: LoadedModel) {
  const limits = batchLimitsWith(stepUs);
  const encodes = config.encoder !== undefined;
  return { encodes, limits: encodes ? encoderLimits(limits, contextTokens) : limits };
}

/** @param pagesAtWorkers undefined: the pages lie here */
function createEngine(
  model: LoadedModel,
  backend: Backend,
  settings: InstanceSettings,
  kvBytes: number,
  pagesAtWorkers: number | undefined,
) {
  const { tokensMax, logitRowsMax } = planningOf(settings, model).limits;
  const pages = pagesAtWorkers === undefined ? {} : { pagesAtWorkers };
  return new Engine({ model, backend, tokensMax, logitRowsMax, kvBytes, ...pages });
}

function createPipeline(
  data: InstanceThreadData<InstanceSettings>,
  { engine, backend, model }: { readonly engine: Engine; readonly backend: Backend; readonly model: LoadedModel },
  handOffs: LiveHandOffs,
  wake: () => void,
): PipelineRunner {
  const columns = model.config.hiddenSize;
  const createTransfer = () =>
    createActivationTransfer(data, { backend, columns }, (to, wire) => handOffs.sendWire(to, wire), wake);
  const sliced = {
    layers: engine.layers,
    pipelineStage: (span: LayerSpan) => engine.pipelineStage(span),
    copyPages: (from: Int32Array, to: Int32Array) => loadNative()?.copyPages(engine.pool, from, to),
  };
  // Between processes, the listener for activations always runs.
  const opened = data.peers === 'processes' && data.receivesPrompts ? createTransfer() : undefined;
  return new PipelineRunner(sliced, () => opened ?? createTransfer());
}

function handOffOf({ sendsAtEnd }: InstanceSettings, receivePages: number): HandOffConfig {
  return { layerWise: sendsAtEnd !== true, receiveTokens: 0, receivePages, rechecksAdmission: true };
}

/** Pages of the reference backend belong to its thread. */
function aheadOfUse({ waitsForPrefixes }: InstanceSettings, { isa }: Backend): boolean {
  return waitsForPrefixes !== true && isa !== 'reference';
}

function describe(settings: InstanceSettings, backend: Backend, model: LoadedModel) {
  const { contextTokens, attentionWorkers } = settings;
  const { isa, threads } = backend;
  return {
    weights: `${settings.weights} (${model.packedTypes.join(', ')})`,
    inputs: describeInputs(settings, isa, model),
    ...{ isa, threads, contextTokens },
    weightBytes: model.weightsBytes,
    fetchBytesPerToken:
      isa === 'reference' || attentionWorkers !== undefined
        ? undefined
        : fetchBytesPerToken(model.kv, settings.tiers !== undefined),
    stageLayers: stageLayers(backend, model),
    aheadOfUse: aheadOfUse(settings, backend),
  };
}

/** The forms of the layers, and why they were chosen. A layer with unquantised weights takes bf16 instead of integers. */
function describeInputs({ inputs, inputsReason }: InstanceSettings, isa: Isa, model: LoadedModel): string {
  const forms = [...new Set(model.compiled.linears.map((linear) => linear.inputs))].join(', ');
  const reason = inputsReason ?? chooseInputs(inputs, isa, model.packedTypes).reason;
  return reason === undefined ? forms : `${forms} (${reason})`;
}

/** The reference backend and models of several layer groups compute whole prompts. */
function stageLayers({ isa }: Backend, { kv }: LoadedModel): number | undefined {
  if (isa === 'reference' || hasWindows(kv)) return undefined;
  return kv.groups.length === 1 ? kv.groups[0].layers : undefined;
}

/** Lowers the priority of this thread and its compute threads (Linux), so that the gateway thread runs first on few cores. */
function yieldToGateway(): void {
  if (platform() === 'linux') setPriority(computeNiceness);
}

async function serve(data: InstanceThreadData<InstanceSettings>): Promise<void> {
  const { endpoint, address, incarnation } = data;
  const own = { bus: new MemoryBus(endpoint), address, incarnation };
  const post = (message: FromInstance): void => publishTo(own.bus, 'output', [address, incarnation], message);
  try {
    yieldToGateway();
    const { loop, ready } = data.role === 'store' ? createStore(data, own) : await create(data, own);
    loop.start();
    collectOnRequest();
    post({ kind: 'ready', ...ready, snapshot: loop.snapshot() });
  } catch (error) {
    post({ kind: 'startFailed', message: error instanceof Error ? error.message : String(error) });
  }
}

if (isMainThread) throw new Error('Cannot run an instance: this module is the entry of a worker thread');
void serve(workerData as InstanceThreadData<InstanceSettings>);
