// `kvasir bench kills`: an overloaded cluster in alternating windows with and without killed instances.
import { setTimeout as sleep } from 'node:timers/promises';
import { firstModel } from '../http/client.ts';
import { median, round } from '../statistics.ts';
import { complete, judge, type KnownRequest, type OutcomeKind, type Target } from './answers.ts';

/** A cluster with instances as processes. */
export interface KillableCluster {
  readonly url: string;
  readonly instances: number;
  /** Kills the instance as `kill -9` does, and starts another in its place. */
  replace(instance: number): Promise<void>;
  /** Memory of the gateway, resident. */
  residentBytes(): number | undefined;
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
  readonly onProgress: (line: string) => void;
}

interface WindowFigures extends Readonly<Record<OutcomeKind, number>> {
  readonly tokens: number;
}

export interface KillsReport {
  readonly instances: number;
  readonly seconds: number;
  readonly kills: number;
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
  readonly residentGrowth: number | undefined;
}

const kinds = 48;
const capacitySeconds = 5;
const clients = 32;

/** @throws Error if the cluster does not become idle */
export async function benchKills(options: KillsBench): Promise<KillsReport> {
  const { url } = options.cluster;
  const bench = new Kills(options, { url, model: await firstModel({ url, apiKey: undefined }) });
  await bench.recordExpected();
  const capacity = await bench.capacity();
  const requestsPerSecond = capacity * options.overload;
  options.onProgress(`serves ${capacity.toFixed(1)} requests/s: sending ${requestsPerSecond.toFixed(1)}`);
  const before = options.cluster.residentBytes();
  const pairs = Math.max(1, Math.round(options.seconds / options.windowSeconds));
  const [calm, killed]: WindowFigures[][] = [[], []];
  for (let i = 0; i < pairs; i++) {
    calm.push(await bench.window(requestsPerSecond, false));
    killed.push(await bench.window(requestsPerSecond, true));
    await bench.waitUntilIdle();
    options.onProgress(
      `${calm[i].tokens} tokens without kills, ${killed[i].tokens} with, of windows ${i + 1} of ${pairs}`,
    );
  }
  const pagesUsedEnd = await bench.waitUntilIdle();
  const after = options.cluster.residentBytes();
  const [calmAll, killedAll] = [calm, killed].map(sumOf);
  return {
    ...{ instances: options.cluster.instances, seconds: pairs * options.windowSeconds, kills: bench.kills },
    ...{ requestsPerSecond: round(requestsPerSecond), calm: calmAll, killed: killedAll },
    goodputRatio: round(killedAll.tokens / calmAll.tokens),
    medianRatio: round(median(calm.map(({ tokens }, i) => killed[i].tokens / tokens)) ?? 0),
    failures: [...bench.failures],
    pagesUsedEnd,
    residentGrowth: before === undefined || after === undefined ? undefined : round(after / before - 1),
  };
}

class Kills {
  readonly failures = new Set<string>();
  kills = 0;
  readonly #options: KillsBench;
  readonly #server: Target;
  readonly #expected: string[] = [];
  #requests = 0;

  constructor(options: KillsBench, server: Target) {
    this.#options = options;
    this.#server = server;
  }

  /** Records the output of each request without faults. */
  async recordExpected(): Promise<void> {
    for (let kind = 0; kind < kinds; kind++) {
      const { status, text, finished, error } = await complete(this.#server, knownRequest(kind));
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
      if (dueMs > 0) await sleep(dueMs);
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
      await cluster.replace(Math.floor(Math.random() * cluster.instances));
      this.kills++;
    }
  }

  async #send() {
    const request = knownRequest(this.#requests++ % kinds);
    const outcome = judge(await complete(this.#server, request), this.#expected[request.kind], request);
    if (outcome.why !== undefined) this.failures.add(`${outcome.kind}: ${outcome.why}`.slice(0, 200));
    return outcome;
  }

  /** Waits until all instances serve and are idle. @returns used pages */
  async waitUntilIdle(): Promise<number> {
    const { url, instances } = this.#options.cluster;
    for (let checks = 0; checks < 300; checks++) {
      const health = (await (await fetch(`${url}/health`)).json()) as { instances?: { ready: number } };
      const metrics = await (await fetch(`${url}/metrics`)).text();
      const gauge = (name: string): number => Number(new RegExp(`^${name} (.+)$`, 'm').exec(metrics)?.[1]);
      const used = gauge('kvasir_kv_pages_used');
      if (health.instances?.ready === instances && gauge('kvasir_requests_running') === 0 && used === 0) return used;
      await sleep(100);
    }
    throw new Error(
      'Cannot continue: the cluster does not become idle: requests or pages are held for half a minute after the last answer',
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
