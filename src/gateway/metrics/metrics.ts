// Prometheus metrics of the gateway and of the instances behind it.
import { Counter, Histogram, Registry } from 'prom-client';

import type { ClusterView, InstanceSnapshot, InstancesPort } from '../../core/protocol/ports.ts';
import type { LatencyBounds } from '../dashboard/class-latencies.ts';
import type { RequestOutcome } from '../http/request-line.ts';
import type { ModelFigures } from '../models/served-models.ts';
import { addAttentionWorkerMetrics } from './attention-worker-metrics.ts';
import { addBlockMetrics } from './block-metrics.ts';
import { countGoodput } from './goodput-metrics.ts';
import { addLendingLinkMetrics, lendingCounters, lendingGauges } from './lending-metrics.ts';
import { addModelMetrics } from './model-metrics.ts';
import { addPipelineMetrics } from './pipeline-metrics.ts';
import { auditPredictions } from './prediction-metrics.ts';
import { addProcessMetrics, type Workers } from './process-metrics.ts';
import { addPerInstance, addPulled, type InstanceMetric, workerOf, workersOf } from './pulled-metric.ts';
import { sparseCounters, sparseGauges } from './sparse-metrics.ts';
import { tierCounters, tierGauges } from './tier-metrics.ts';
import { addVllmMetrics } from './vllm-metrics.ts';

const latencySeconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const gapSeconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];

/** Figures of all instances together: name, help, value. */
const gauges: readonly InstanceMetric[] = [
  ['kvasir_requests_waiting', 'Requests accepted and not yet running.', (s) => s.waiting],
  ['kvasir_requests_running', 'Requests in the running batches.', (s) => s.running],
  ['kvasir_kv_pages', 'KV pages of the pools.', (s) => s.pages.total],
  ['kvasir_kv_pages_used', 'KV pages held by requests.', (s) => s.pages.used],
  ['kvasir_kv_pages_cached', 'KV pages that hold cached prefixes only.', (s) => s.pages.cached],
  ['kvasir_kv_pages_free', 'Free KV pages.', (s) => s.pages.free],
  ...sparseGauges,
];
const counters: readonly InstanceMetric[] = [
  ['kvasir_prompt_tokens_total', 'Prompt tokens of started requests.', (s) => s.promptTokens],
  ['kvasir_prefix_cache_hit_tokens_total', 'Prompt tokens found in the prefix cache.', (s) => s.cachedTokens],
  ['kvasir_prompt_tokens_computed_total', 'Prompt tokens computed.', (s) => s.computedPromptTokens],
  ['kvasir_generated_tokens_total', 'Output tokens generated.', (s) => s.generatedTokens],
  ['kvasir_preemptions_total', 'Requests preempted, to be recomputed later.', (s) => s.preemptions],
  ['kvasir_evicted_blocks_total', 'Cached blocks evicted.', (s) => s.evictedBlocks],
  ['kvasir_steps_total', 'Engine steps.', (s) => s.steps],
  ['kvasir_step_seconds_total', 'Time spent in engine steps.', (s) => s.stepMsTotal / 1000],
  ...sparseCounters,
];

const instanceGauges: readonly InstanceMetric[] = [
  ['kvasir_instance_up', '1 if the instance serves, else 0.', (s) => Number(s.ready)],
  ['kvasir_instance_requests_waiting', 'Requests of the instance that are not yet running.', (s) => s.waiting],
  ['kvasir_instance_requests_running', 'Requests in the running batch of the instance.', (s) => s.running],
  ['kvasir_instance_kv_pages_used', 'KV pages of the instance held by requests.', (s) => s.pages.used],
  [
    'kvasir_instance_kv_pages_cached',
    'KV pages of the instance that hold cached prefixes only.',
    (s) => s.pages.cached,
  ],
  ['kvasir_instance_kv_pages_free', 'Free KV pages of the instance.', (s) => s.pages.free],
  [
    'kvasir_instance_receive_buffer_pages_free',
    'Free pages of the receive buffer for prompts from other instances.',
    (s) => s.receivePages?.free ?? 0,
    'kvasir_instance_landing_pages_free',
  ],
  ...tierGauges,
  ...lendingGauges,
];

const instanceCounters: readonly InstanceMetric[] = [
  ['kvasir_instance_sent_bytes_total', 'Bytes of KV pages sent to other instances.', (s) => s.sent?.bytes ?? 0],
  [
    'kvasir_instance_sent_overlapped_bytes_total',
    'Bytes of KV pages that were sent while a step was running.',
    (s) => s.sent?.earlyBytes ?? 0,
    'kvasir_instance_sent_early_bytes_total',
  ],
  [
    'kvasir_instance_borrow_stall_seconds_total',
    'Time that sequences waited for borrowed memory.',
    (s) => (s.lending?.stallUs ?? 0) / 1e6,
  ],
  [
    'kvasir_instance_sent_seconds_total',
    'Time spent copying KV pages to other instances.',
    (s) => s.sent?.copySeconds ?? 0,
  ],
  [
    'kvasir_instance_connection_faults_total',
    'Connections for KV pages that broke, were refused, or were closed for a fault.',
    (s) => s.sent?.faults ?? 0,
  ],
  ...tierCounters,
  ...lendingCounters,
];

export interface MetricsSettings {
  /** Of the release. */
  readonly version?: string | undefined;
  /** The bounds of an SLO class, or of requests without one; undefined: none. */
  readonly boundsOf?: (sloClass: string) => LatencyBounds | undefined;
}

export class GatewayMetrics {
  readonly #registry = new Registry();
  readonly #ttft: Histogram;
  readonly #itl: Histogram;
  readonly #duration: Histogram;
  readonly #responses: Counter<'endpoint' | 'status'>;
  readonly #cancelled: Counter;
  readonly #tenantRequests: Counter<'tenant' | 'outcome'>;
  readonly #tenantTokens: Counter<'tenant' | 'kind'>;
  readonly #refusals: RefusalCounter;

  constructor(
    port: InstancesPort,
    cluster: ClusterView,
    models: () => readonly ModelFigures[],
    { version = 'unknown', boundsOf = () => undefined }: MetricsSettings = {},
  ) {
    const registers = [this.#registry];
    this.#ttft = new Histogram({
      name: 'kvasir_ttft_seconds',
      help: 'Time to first token of a request.',
      buckets: latencySeconds,
      registers,
    });
    this.#itl = new Histogram({
      name: 'kvasir_itl_seconds',
      help: 'Time between two tokens of a choice.',
      buckets: gapSeconds,
      registers,
    });
    this.#duration = new Histogram({
      name: 'kvasir_request_seconds',
      help: 'Time from a request to the end of its response.',
      buckets: latencySeconds,
      registers,
    });
    this.#responses = new Counter({
      name: 'kvasir_http_responses_total',
      help: 'HTTP responses by endpoint and status.',
      labelNames: ['endpoint', 'status'],
      registers,
    });
    this.#cancelled = new Counter({
      name: 'kvasir_requests_cancelled_total',
      help: 'Requests cancelled by a disconnect of the client.',
      registers,
    });
    this.#tenantRequests = new Counter({
      name: 'kvasir_tenant_requests_total',
      help: 'Generating requests that ended, by tenant and outcome: finished, cancelled or failed.',
      labelNames: ['tenant', 'outcome'],
      registers,
    });
    this.#tenantTokens = new Counter({
      name: 'kvasir_tenant_tokens_total',
      help: 'Tokens of requests that ended, by tenant: prompt, cached (of the prompt), and output.',
      labelNames: ['tenant', 'kind'],
      registers,
    });
    this.#refusals = countRefusals(this.#registry, cluster);
    countGoodput(this.#registry, cluster, boundsOf);
    for (const [kind, metrics] of [['gauge', gauges] as const, ['counter', counters] as const])
      for (const [name, help, read] of metrics)
        addPulled(this.#registry, { name, help, kind, read: () => [[{}, read(port.snapshot())]] });
    addBlockMetrics(this.#registry, () => port.snapshot());
    addModelMetrics(this.#registry, models);
    addVllmMetrics(this.#registry, models);
    addWorkers(this.#registry, { version, instances: () => port.instances(), roles: () => cluster.roles() });
    auditPredictions(this.#registry, cluster, { ttft: latencySeconds, tbt: gapSeconds });
  }

  /** @param startMs arrival of the request by performance.now() @param onFirstToken called once */
  startRequest(startMs: number, onFirstToken: () => void = () => {}): RequestTimes {
    const histograms = { ttft: this.#ttft, itl: this.#itl, duration: this.#duration };
    return new RequestTimes(histograms, this.#cancelled, startMs, onFirstToken);
  }

  /** A generating request has ended. */
  ended(tenant: string, { outcome, promptTokens, cachedTokens, outputTokens }: RequestOutcome): void {
    this.#tenantRequests.inc({ tenant, outcome });
    this.#tenantTokens.inc({ tenant, kind: 'prompt' }, promptTokens);
    this.#tenantTokens.inc({ tenant, kind: 'cached' }, cachedTokens);
    this.#tenantTokens.inc({ tenant, kind: 'output' }, outputTokens);
  }

  /** A request was refused before its body was read: its class and tenant are unknown. */
  refusedUnread(): void {
    this.#refusals.inc({ reason: 'queue', slo_class: '', tenant: '' });
  }

  /** Refused requests by reason and SLO class, over all tenants. */
  async refusals(): Promise<readonly (readonly [reason: string, sloClass: string, requests: number])[]> {
    const { values } = await this.#refusals.get();
    const counts = new Map<string, { reason: string; sloClass: string; requests: number }>();
    for (const { labels, value } of values) {
      const { reason = '', slo_class: sloClass = '' } = labels;
      const key = `${reason} ${sloClass}`;
      counts.set(key, {
        reason: String(reason),
        sloClass: String(sloClass),
        requests: value + (counts.get(key)?.requests ?? 0),
      });
    }
    return [...counts.values()].map(({ reason, sloClass, requests }) => [reason, sloClass, requests] as const);
  }

  response(endpoint: string, status: number): void {
    this.#responses.inc({ endpoint, status: String(status) });
  }

  async render(): Promise<{ contentType: string; text: string }> {
    return { contentType: this.#registry.contentType, text: await this.#registry.metrics() };
  }
}

/** Metrics by instance. */
function addWorkers(registry: Registry, workers: Workers): void {
  const { instances } = workers;
  addPerInstance(registry, 'gauge', instanceGauges, instances);
  addPerInstance(registry, 'counter', instanceCounters, instances);
  addProcessMetrics(registry, workers);
  addLinkMetrics(registry, instances);
  addLendingLinkMetrics(registry, instances);
  addPipelineMetrics(registry, instances);
  addAttentionWorkerMetrics(registry, instances);
}

/** The metrics of an instance in a process of its own. */
export class WorkerMetrics {
  readonly #registry = new Registry();

  constructor(workers: Workers) {
    addWorkers(this.#registry, workers);
    for (const [kind, metrics] of [['gauge', gauges] as const, ['counter', counters] as const])
      for (const [name, help, read] of metrics)
        addPulled(this.#registry, { name, help, kind, read: () => workers.instances().map((s) => [{}, read(s)]) });
  }

  async render(): Promise<{ contentType: string; text: string }> {
    return { contentType: this.#registry.contentType, text: await this.#registry.metrics() };
  }
}

type RefusalCounter = Counter<'reason' | 'slo_class' | 'tenant'>;

/** Counts refused requests as they end. */
function countRefusals(registry: Registry, cluster: ClusterView): RefusalCounter {
  const refusals: RefusalCounter = new Counter({
    name: 'kvasir_refusals_total',
    help: 'Generating requests that were refused, by reason, SLO class and tenant.',
    labelNames: ['reason', 'slo_class', 'tenant'],
    registers: [registry],
  });
  cluster.onEnded(({ end, sloClass = '', tenant = '' }) => {
    if (end?.kind === 'failed' && end.cause !== undefined)
      refusals.inc({ reason: end.cause.reason, slo_class: sloClass, tenant });
  });
  return refusals;
}

function linksOf(instances: readonly InstanceSnapshot[]) {
  return workersOf(instances).flatMap(({ worker: from, snapshot: { links = [] } }) =>
    links.map(
      (link) => [{ from, to: workerOf(instances, link.to), transport: link.transport ?? 'none' }, link] as const,
    ),
  );
}

/** Receives the progress of one request. */
export interface RequestClock {
  tokens(choice: number, count: number): void;
  finished(): void;
  cancelled(): void;
  /** Undefined before the first token. */
  readonly ttftMs: number | undefined;
}

/** For requests without a client that waits. */
export const unobserved: RequestClock = {
  tokens: () => {},
  finished: () => {},
  cancelled: () => {},
  ttftMs: undefined,
};

/** Clock of one HTTP request: TTFT of its first token, ITL of each choice's gaps. */
export class RequestTimes implements RequestClock {
  readonly #histograms: Readonly<Record<'ttft' | 'itl' | 'duration', Histogram>>;
  readonly #cancelled: Counter;
  readonly #startMs: number;
  readonly #onFirstToken: () => void;
  readonly #lastMs = new Map<number, number>();
  #ttftMs: number | undefined;

  constructor(
    histograms: Readonly<Record<'ttft' | 'itl' | 'duration', Histogram>>,
    cancelled: Counter,
    startMs: number,
    onFirstToken: () => void,
  ) {
    this.#histograms = histograms;
    this.#cancelled = cancelled;
    this.#startMs = startMs;
    this.#onFirstToken = onFirstToken;
  }

  get ttftMs(): number | undefined {
    return this.#ttftMs;
  }

  /** `count` tokens of a choice arrived together: one gap, then gaps of zero. */
  tokens(choice: number, count: number): void {
    const nowMs = performance.now();
    const lastMs = this.#lastMs.get(choice);
    const { ttft, itl } = this.#histograms;
    if (lastMs === undefined) ttft.observe((nowMs - this.#startMs) / 1000);
    else itl.observe((nowMs - lastMs) / 1000);
    for (let i = 1; i < count; i++) itl.observe(0);
    if (this.#ttftMs === undefined) {
      this.#ttftMs = Math.round(nowMs - this.#startMs);
      this.#onFirstToken();
    }
    this.#lastMs.set(choice, nowMs);
  }

  finished(): void {
    this.#histograms.duration.observe((performance.now() - this.#startMs) / 1000);
  }

  cancelled(): void {
    this.#cancelled.inc();
  }
}

/** KV bytes by link between two instances. */
function addLinkMetrics(registry: Registry, instances: () => readonly InstanceSnapshot[]): void {
  const labelNames = ['from', 'to', 'transport'];
  addPulled(registry, {
    name: 'kvasir_link_sent_bytes_total',
    help: 'KV bytes sent to another instance.',
    kind: 'counter',
    labelNames,
    read: () => linksOf(instances()).map(([labels, { bytes }]) => [labels, bytes] as const),
  });
  addPulled(registry, {
    name: 'kvasir_link_backlog_bytes',
    help: 'KV bytes sent but not yet acknowledged.',
    kind: 'gauge',
    labelNames,
    read: () => linksOf(instances()).map(([labels, { backlogBytes }]) => [labels, backlogBytes] as const),
  });
}
