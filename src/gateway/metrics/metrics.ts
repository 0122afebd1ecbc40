// Prometheus metrics of the gateway and of the instances behind it.
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { ClusterPort, InferencePort, InstanceSnapshot, LinkSnapshot } from '../../core/protocol/ports.ts';
import { addLinkMetrics, lendingCounters, lendingGauges } from './lending-metrics.ts';
import { addStageMetrics } from './pipeline-metrics.ts';
import { auditPredictions } from './prediction-metrics.ts';
import { tierCounters, tierGauges } from './tier-metrics.ts';

const latencySeconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const gapSeconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];

/** Gauges and counters of all instances together, read at scrape time: name, help, value. */
const gauges: readonly (readonly [string, string, (s: InstanceSnapshot) => number])[] = [
  ['kvasir_requests_waiting', 'Requests accepted and not yet running', (s) => s.waiting],
  ['kvasir_requests_running', 'Requests in the running batch', (s) => s.running],
  ['kvasir_kv_pages_total', 'KV pages of the pool', (s) => s.pages.total],
  ['kvasir_kv_pages_used', 'KV pages held by requests', (s) => s.pages.used],
  ['kvasir_kv_pages_cached', 'KV pages kept as prefix cache', (s) => s.pages.cached],
  ['kvasir_kv_pages_free', 'KV pages free', (s) => s.pages.free],
];
const counters: readonly (readonly [string, string, (s: InstanceSnapshot) => number])[] = [
  ['kvasir_prompt_tokens_total', 'Prompt tokens of started requests', (s) => s.promptTokens],
  ['kvasir_prefix_cache_hit_tokens_total', 'Prompt tokens taken from the prefix cache', (s) => s.cachedTokens],
  ['kvasir_prompt_tokens_computed_total', 'Prompt tokens computed', (s) => s.computedPromptTokens],
  ['kvasir_generated_tokens_total', 'Tokens generated', (s) => s.generatedTokens],
  ['kvasir_preemptions_total', 'Requests preempted to be recomputed', (s) => s.preemptions],
  ['kvasir_evicted_blocks_total', 'Cached blocks evicted', (s) => s.evictedBlocks],
  ['kvasir_steps_total', 'Engine steps', (s) => s.steps],
  ['kvasir_step_seconds_total', 'Time in engine steps', (s) => s.stepMsTotal / 1000],
];

/** Gauges of each instance. */
const instanceGauges: readonly (readonly [string, string, (s: InstanceSnapshot) => number])[] = [
  ['kvasir_instance_up', 'Does the instance serve?', (s) => Number(s.ready)],
  ['kvasir_instance_requests_waiting', 'Requests of the instance that do not run yet', (s) => s.waiting],
  ['kvasir_instance_requests_running', 'Requests in the running batch of the instance', (s) => s.running],
  ['kvasir_instance_kv_pages_used', 'KV pages of the instance held by requests', (s) => s.pages.used],
  ['kvasir_instance_kv_pages_cached', 'KV pages of the instance kept as prefix cache', (s) => s.pages.cached],
  ['kvasir_instance_kv_pages_free', 'KV pages of the instance free', (s) => s.pages.free],
  ['kvasir_instance_landing_pages_free', 'Pages where prompts of others may land', (s) => s.landing?.free ?? 0],
  ...tierGauges,
  ...lendingGauges,
];

/** Counters of each instance. */
const instanceCounters: typeof instanceGauges = [
  ['kvasir_instance_sent_bytes_total', 'Bytes of KV pages copied to other instances', (s) => s.sent?.bytes ?? 0],
  [
    'kvasir_instance_sent_early_bytes_total',
    'Of them, those that left while a step ran: hidden behind it',
    (s) => s.sent?.earlyBytes ?? 0,
  ],
  [
    'kvasir_instance_borrow_stall_seconds_total',
    'Time that sequences waited for borrowed memory',
    (s) => (s.lending?.stallUs ?? 0) / 1e6,
  ],
  ['kvasir_instance_sent_seconds_total', 'Time spent copying them', (s) => s.sent?.copySeconds ?? 0],
  [
    'kvasir_instance_connection_faults_total',
    'Connections for KV pages that broke, were refused or given up',
    (s) => s.sent?.faults ?? 0,
  ],
  ...tierCounters,
  ...lendingCounters,
];

export class GatewayMetrics {
  readonly #registry = new Registry();
  readonly #ttft: Histogram;
  readonly #itl: Histogram;
  readonly #duration: Histogram;
  readonly #responses: Counter<'endpoint' | 'status'>;
  readonly #cancelled: Counter;

  constructor(port: InferencePort, cluster: ClusterPort) {
    const registers = [this.#registry];
    this.#ttft = new Histogram({
      name: 'kvasir_ttft_seconds',
      help: 'Time to first token',
      buckets: latencySeconds,
      registers,
    });
    this.#itl = new Histogram({
      name: 'kvasir_itl_seconds',
      help: 'Gap between tokens',
      buckets: gapSeconds,
      registers,
    });
    this.#duration = new Histogram({
      name: 'kvasir_request_seconds',
      help: 'Whole request',
      buckets: latencySeconds,
      registers,
    });
    this.#responses = new Counter({
      name: 'kvasir_http_responses_total',
      help: 'Answers by endpoint and status',
      labelNames: ['endpoint', 'status'],
      registers,
    });
    this.#cancelled = new Counter({
      name: 'kvasir_requests_cancelled_total',
      help: 'Requests whose client went away',
      registers,
    });
    for (const [name, help, read] of gauges) this.#pull(name, help, () => read(port.snapshot()), 'gauge');
    for (const [name, help, read] of counters) this.#pull(name, help, () => read(port.snapshot()), 'counter');
    const each = (read: (s: InstanceSnapshot) => number) => () => port.instances().map(read);
    for (const [name, help, read] of instanceGauges) this.#pullEach(name, help, each(read), 'gauge');
    for (const [name, help, read] of instanceCounters) this.#pullEach(name, help, each(read), 'counter');
    const links = () => port.instances().map(({ links: own = [] }) => own);
    const labelNames = ['from', 'to', 'transport'];
    new Counter({
      ...{ name: 'kvasir_link_sent_bytes_total', help: 'Bytes of KV pages put on the way to another instance' },
      ...{ labelNames, registers },
      collect() {
        this.reset();
        for (const [labels, { bytes }] of labelled(links())) this.inc(labels, bytes);
      },
    });
    new Gauge({
      ...{ name: 'kvasir_link_backlog_bytes', help: 'Of them, those that are not known to have arrived' },
      ...{ labelNames, registers },
      collect() {
        this.reset();
        for (const [labels, { backlogBytes }] of labelled(links())) this.set(labels, backlogBytes);
      },
    });
    addLinkMetrics(this.#registry, () => port.instances());
    addStageMetrics(this.#registry, () => port.instances());
    auditPredictions(this.#registry, cluster, { ttft: latencySeconds, tbt: gapSeconds });
  }

  /** @param startMs when the request came, by performance.now() */
  startRequest(startMs: number): RequestTimes {
    return new RequestTimes(this.#ttft, this.#itl, this.#duration, this.#cancelled, startMs);
  }

  response(endpoint: string, status: number): void {
    this.#responses.inc({ endpoint, status: String(status) });
  }

  async render(): Promise<{ contentType: string; text: string }> {
    return { contentType: this.#registry.contentType, text: await this.#registry.metrics() };
  }

  #pullEach(name: string, help: string, read: () => readonly number[], kind: 'gauge' | 'counter'): void {
    const labelled = { name, help, labelNames: ['instance'], registers: [this.#registry] };
    if (kind === 'gauge') {
      new Gauge({
        ...labelled,
        collect() {
          for (const [instance, value] of read().entries()) this.set({ instance }, value);
        },
      });
      return;
    }
    new Counter({
      ...labelled,
      collect() {
        this.reset();
        for (const [instance, value] of read().entries()) this.inc({ instance }, value);
      },
    });
  }

  #pull(name: string, help: string, read: () => number, kind: 'gauge' | 'counter'): void {
    const registers = [this.#registry];
    if (kind === 'gauge') {
      new Gauge({
        name,
        help,
        registers,
        collect() {
          this.set(read());
        },
      });
      return;
    }
    new Counter({
      name,
      help,
      registers,
      collect() {
        this.reset();
        this.inc(read());
      },
    });
  }
}

type LinkLabels = { readonly from: number; readonly to: number; readonly transport: string };

function labelled(links: readonly (readonly LinkSnapshot[])[]): (readonly [LinkLabels, LinkSnapshot])[] {
  return links.flatMap((own, from) =>
    own.map((link) => [{ from, to: link.to, transport: link.transport ?? 'none' }, link] as const),
  );
}

/** What comes of a request is told here. */
export interface RequestClock {
  tokens(choice: number, count: number): void;
  finished(): void;
  cancelled(): void;
}

/** Of requests that nobody waits for. */
export const unobserved: RequestClock = { tokens: () => {}, finished: () => {}, cancelled: () => {} };

/** Clock of one HTTP request: TTFT of its first token, ITL of each choice's gaps. */
export class RequestTimes implements RequestClock {
  readonly #ttft: Histogram;
  readonly #itl: Histogram;
  readonly #duration: Histogram;
  readonly #cancelled: Counter;
  readonly #startMs: number;
  readonly #lastMs = new Map<number, number>();

  constructor(ttft: Histogram, itl: Histogram, duration: Histogram, cancelled: Counter, startMs: number) {
    this.#ttft = ttft;
    this.#itl = itl;
    this.#duration = duration;
    this.#cancelled = cancelled;
    this.#startMs = startMs;
  }

  /** `count` tokens of a choice arrived together: one gap, then gaps of zero. */
  tokens(choice: number, count: number): void {
    const nowMs = performance.now();
    const lastMs = this.#lastMs.get(choice);
    if (lastMs === undefined) this.#ttft.observe((nowMs - this.#startMs) / 1000);
    else this.#itl.observe((nowMs - lastMs) / 1000);
    for (let i = 1; i < count; i++) this.#itl.observe(0);
    this.#lastMs.set(choice, nowMs);
  }

  finished(): void {
    this.#duration.observe((performance.now() - this.#startMs) / 1000);
  }

  cancelled(): void {
    this.#cancelled.inc();
  }
}
