// `kvasir bench kills`: an overloaded cluster in alternating windows with and without faults of its processes.
import { setTimeout as sleep } from 'node:timers/promises';
import { firstModel } from '../http/client.ts';
import { median, round } from '../statistics.ts';
import { complete, judge, type KnownRequest, type OutcomeKind } from './answers.ts';
import { FaultSchedule } from './fault-schedule.ts';
import { type MemoryGrowth, ResidentMemory } from './resident-memory.ts';

/**
 * `instance`, `gateway` and `nats`: killed as `kill -9` does, and started again. `pause`: all threads of an instance stop,
 * and continue some seconds later. `hang`: the compute thread of an instance stops for good; the process must end by
 * itself, and is started again. `disk`: reads and writes of an instance's SSD tier return some seconds later.
 */
export const faultKinds = ['instance', 'gateway', 'nats', 'pause', 'hang', 'disk'] as const;
export type ProcessFault = (typeof faultKinds)[number];

/** A cluster with gateways, instances and NATS as processes. */
export interface KillableCluster {
  /** Of each gateway. */
  readonly urls: readonly string[];
  readonly instances: number;
  /** Resolves when the fault has ended. @param which the instance or gateway */
  inject(fault: ProcessFault, which: number): Promise<void>;
  /** Resident memory of each process, by its role. */
  residentBytes(): readonly (readonly [role: string, bytes: number])[];
}

export interface KillsBench {
  readonly cluster: KillableCluster;
  /** Duration of all windows of each kind together, and of one window. */
  readonly seconds: number;
  readonly windowSeconds: number;
  /** Between two kills. */
  readonly everySeconds: number;
  /** Load over the capacity of the cluster. */
  readonly overload: number;
  readonly faults: readonly ProcessFault[];
  /** Of the order of faults, and of their victims. */
  readonly seed: number;
  /** After this time resident memory must not grow. */
  readonly settleSeconds: number;
  readonly onProgress: (line: string) => void;
}

interface WindowFigures extends Readonly<Record<OutcomeKind, number>> {
  readonly tokens: number;
}

export interface KillsReport {
  readonly instances: number;
  readonly seconds: number;
  /** Injected faults by kind, all together in `kills`. */
  readonly faults: Readonly<Partial<Record<ProcessFault, number>>>;
  readonly kills: number;
  /** Requests sent again after their gateway broke the connection. */
  readonly resent: number;
  readonly requestsPerSecond: number;
  readonly calm: WindowFigures;
  readonly killed: WindowFigures;
  /** Tokens of correct answers with kills over without, and the median over pairs of windows. */
  readonly goodputRatio: number;
  readonly medianRatio: number;
  /** Distinct failure messages. */
  readonly failures: readonly string[];
  /** Of the idle cluster. */
  readonly pagesUsedEnd: number;
  /** By role of a process; empty before the memory has settled. */
  readonly memory: Readonly<Record<string, MemoryGrowth>>;
}

/** Goodput with faults over that without at least, and the growth of resident memory after it has settled at most. */
const [goodputMin, growthMax] = [0.9, 0.1];

/** What a run must not show, one sentence each; empty for a run that passes. @param faults the kinds that it was to inject */
export function violationsOf(
  report: Pick<KillsReport, 'calm' | 'killed' | 'faults' | 'goodputRatio' | 'pagesUsedEnd' | 'memory'>,
  faults: readonly ProcessFault[],
): readonly string[] {
  const { calm, killed, goodputRatio, pagesUsedEnd, memory } = report;
  const grown = Object.entries(memory).filter(([, { growth }]) => growth > growthMax);
  const missing = faults.filter((fault) => report.faults[fault] === undefined);
  return [
    ...(calm.wrong + killed.wrong > 0 ? [`${calm.wrong + killed.wrong} answers are wrong`] : []),
    ...(calm.failed + killed.failed > 0 ? [`${calm.failed + killed.failed} requests failed`] : []),
    ...(pagesUsedEnd > 0 ? [`the idle cluster holds ${pagesUsedEnd} pages`] : []),
    ...(goodputRatio >= goodputMin
      ? []
      : [`goodput with faults is ${goodputRatio} of that without, below ${goodputMin}`]),
    ...missing.map((fault) => `no fault of the kind ${fault} was injected`),
    ...grown.map(([role, { growth }]) => `resident memory of the largest ${role} grew by ${round(100 * growth)} %`),
    ...(Object.keys(memory).length === 0
      ? ['resident memory was not compared: the run ended before it had settled']
      : []),
  ];
}

const kinds = 48;
const capacitySeconds = 5;
const clients = 32;
/** A client sends a request again for so long, as clients behind a load balancer do. */
const resendMs = 60_000;
const memoryPollMs = 2_000;

/** @throws Error if the cluster does not become idle */
export async function benchKills(options: KillsBench): Promise<KillsReport> {
  const [url = ''] = options.cluster.urls;
  const bench = new Kills(options, await firstModel({ url, apiKey: undefined }));
  await bench.recordExpected();
  const capacity = await bench.capacity();
  const requestsPerSecond = capacity * options.overload;
  options.onProgress(`serves ${capacity.toFixed(1)} requests/s: sending ${requestsPerSecond.toFixed(1)}`);
  const memory = new ResidentMemory(1000 * options.settleSeconds, performance.now());
  const observe = (): void => memory.observe(performance.now(), options.cluster.residentBytes());
  const polling = setInterval(observe, memoryPollMs);
  const pairs = Math.max(1, Math.round(options.seconds / options.windowSeconds));
  const [calm, killed]: WindowFigures[][] = [[], []];
  let pagesUsedEnd = 0;
  // Held pages end the run: the report states them.
  for (let i = 0; i < pairs && pagesUsedEnd === 0; i++) {
    calm.push(await bench.window(requestsPerSecond, false));
    killed.push(await bench.window(requestsPerSecond, true));
    pagesUsedEnd = await bench.waitUntilIdle();
    options.onProgress(
      `${calm[i].tokens} tokens without kills, ${killed[i].tokens} with, of windows ${i + 1} of ${pairs}`,
    );
  }
  clearInterval(polling);
  const [calmAll, killedAll] = [calm, killed].map(sumOf);
  return {
    ...{ instances: options.cluster.instances, seconds: calm.length * options.windowSeconds, kills: bench.kills },
    ...{ faults: Object.fromEntries(bench.injected), resent: bench.resent },
    ...{ requestsPerSecond: round(requestsPerSecond), calm: calmAll, killed: killedAll },
    goodputRatio: round(killedAll.tokens / calmAll.tokens),
    medianRatio: round(median(calm.map(({ tokens }, i) => killed[i].tokens / tokens)) ?? 0),
    failures: [...bench.failures],
    pagesUsedEnd,
    memory: memory.growth(),
  };
}

class Kills {
  readonly failures = new Set<string>();
  readonly injected = new Map<ProcessFault, number>();
  resent = 0;
  readonly #options: KillsBench;
  readonly #model: string;
  readonly #schedule: FaultSchedule<ProcessFault>;
  readonly #expected: string[] = [];
  #requests = 0;

  constructor(options: KillsBench, model: string) {
    this.#options = options;
    this.#model = model;
    this.#schedule = new FaultSchedule(options.faults, options.seed);
  }

  get kills(): number {
    return [...this.injected.values()].reduce((sum, count) => sum + count, 0);
  }

  /** Records the output of each request without faults. */
  async recordExpected(): Promise<void> {
    for (let kind = 0; kind < kinds; kind++) {
      const { status, text, finished, error } = await complete(this.#server(0), knownRequest(kind));
      if (!finished) throw new Error(`Cannot start: request ${kind} has no output: ${status}: ${error}`);
      this.#expected.push(text);
    }
  }

  /** Requests per second that closed-loop clients complete. */
  async capacity(): Promise<number> {
    const end = performance.now() + 1000 * capacitySeconds;
    let answered = 0;
    const client = async (): Promise<void> => {
      while (performance.now() < end) if ((await this.#send()).kind === 'right' && performance.now() < end) answered++;
    };
    await Promise.all(Array.from({ length: clients }, client));
    return answered / capacitySeconds;
  }

  /** Sends requests for one window. Outputs that end within it count, also those of earlier requests. */
  async window(requestsPerSecond: number, kills: boolean): Promise<WindowFigures> {
    const { windowSeconds, everySeconds } = this.#options;
    const start = performance.now();
    const end = start + 1000 * windowSeconds;
    const figures = { tokens: 0, right: 0, wrong: 0, refused: 0, failed: 0 };
    const open = new Set<Promise<void>>();
    const killing = kills ? this.#kill(start + 500 * everySeconds, end) : undefined;
    for (let sent = 0; performance.now() < end; sent++) {
      const dueMs = start + (1000 * sent) / requestsPerSecond - performance.now();
      // Also when it is late: answers must be read meanwhile.
      await sleep(Math.max(0, dueMs));
      const one = this.#send().then(({ kind, tokens }) => {
        open.delete(one);
        if (performance.now() > end && kind === 'right') return;
        figures[kind]++;
        figures.tokens += tokens;
      });
      open.add(one);
    }
    await killing;
    await Promise.all(open);
    return figures;
  }

  async #kill(firstMs: number, endMs: number): Promise<void> {
    const { cluster, everySeconds } = this.#options;
    for (let atMs = firstMs; atMs < endMs; atMs += 1000 * everySeconds) {
      await sleep(Math.max(0, atMs - performance.now()));
      const fault = this.#schedule.next();
      const victims = fault === 'gateway' ? cluster.urls.length : cluster.instances;
      await cluster.inject(fault, this.#schedule.victim(victims));
      this.injected.set(fault, (this.injected.get(fault) ?? 0) + 1);
    }
  }

  #server(number: number) {
    const { urls } = this.#options.cluster;
    return { url: urls[number % urls.length] ?? '', model: this.#model };
  }

  async #send() {
    const number = this.#requests++;
    const request = knownRequest(number % kinds);
    const outcome = await this.#complete(number, request);
    if (outcome.why !== undefined) this.failures.add(`${outcome.kind}: ${outcome.why}`.slice(0, 200));
    return outcome;
  }

  /** Sends the request again, to the next gateway, while gateways break the connection. Text before that must be right. */
  async #complete(number: number, request: KnownRequest) {
    const expected = this.#expected[request.kind];
    const endMs = performance.now() + resendMs;
    for (let attempt = 0; ; attempt++) {
      const answer = await complete(this.#server(number + attempt), request);
      const isBroken = answer.status === 0 && expected.startsWith(answer.text);
      if (!isBroken || performance.now() > endMs) return judge(answer, expected, request);
      this.resent++;
      await sleep(50);
    }
  }

  /** Waits until all instances serve and are idle at every gateway. @returns pages that idle instances still use after half a minute */
  async waitUntilIdle(): Promise<number> {
    const used = await Promise.all(this.#options.cluster.urls.map((url) => this.#waitUntilIdleAt(url)));
    return Math.max(...used);
  }

  async #waitUntilIdleAt(url: string): Promise<number> {
    const { instances } = this.#options.cluster;
    let heldPages = 0;
    for (let checks = 0; checks < 300; checks++) {
      const health = (await (await fetch(`${url}/health`)).json()) as { instances?: { ready: number } };
      const metrics = await (await fetch(`${url}/metrics`)).text();
      const gauge = (name: string): number => Number(new RegExp(`^${name} (.+)$`, 'm').exec(metrics)?.[1]);
      const used = gauge('kvasir_kv_pages_used');
      const isIdle = health.instances?.ready === instances && gauge('kvasir_requests_running') === 0;
      if (isIdle && used === 0) return 0;
      heldPages = isIdle ? used : 0;
      await sleep(100);
    }
    if (heldPages > 0) return heldPages;
    throw new Error(
      'Cannot continue: the cluster does not become idle: requests run or instances are missing half a minute after the last answer',
    );
  }
}

/** Outputs of 16 to 63 tokens. */
function knownRequest(kind: number): KnownRequest {
  return { kind, maxTokens: 16 + ((kind * 7) % 48) };
}

function sumOf(windows: readonly WindowFigures[]): WindowFigures {
  const sum = { tokens: 0, right: 0, wrong: 0, refused: 0, failed: 0 };
  for (const figures of windows) for (const key of Object.keys(sum) as (keyof typeof sum)[]) sum[key] += figures[key];
  return sum;
}
