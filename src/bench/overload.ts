// Admission policies under overload: chats and reports sent at the same times to a cluster of processes with each policy.
import { setTimeout as sleep } from 'node:timers/promises';
import { meanOfLongest } from '../sim/report/longest-gaps.ts';
import { Prng } from '../util/prng.ts';
import { firstModel, type TimedAnswer, timedCompletion } from './http/client.ts';
import { newPrompt } from './requests.ts';
import { median, round } from './statistics.ts';

export const classNames = ['chat', 'report'] as const;
export type ClassName = (typeof classNames)[number];

/** Lengths and importance of the requests of a class. */
export interface RequestClass {
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly priority: number;
  /** Part of the prefill work of the load. */
  readonly share: number;
}

export interface ClassBounds {
  readonly ttftMs: number;
  /** For the mean of the longest 10 % of gaps. */
  readonly tbtMs: number;
}

export type Bounds = Readonly<Record<ClassName, ClassBounds>>;

/** A running cluster with one admission policy. */
export interface OverloadedCluster {
  readonly url: string;
  readonly prefillInstances: number;
  close(): Promise<void>;
}

export interface OverloadBench<Policy extends string> {
  readonly policies: readonly Policy[];
  /** @param bounds undefined: of the calibration, which has no SLO */
  start(policy: Policy | 'none', bounds: Bounds | undefined): Promise<OverloadedCluster>;
  readonly classes: Readonly<Record<ClassName, RequestClass>>;
  /** Bounds over the times of a request that runs alone. */
  readonly ttftFactor: number;
  readonly tbtFactor: number;
  /** Prefill work that arrives over what the prefill instances compute. */
  readonly overload: number;
  /** Duration of the arrivals with each policy. */
  readonly seconds: number;
  readonly seed: number;
  readonly vocabSize: number;
  readonly onProgress: (line: string) => void;
}

export interface ClassFigures {
  readonly sent: number;
  readonly withinSlo: number;
  /** Answered, and not within both bounds. */
  readonly late: number;
  /** With a 429. */
  readonly refused: number;
  /** After their prompts were computed. */
  readonly refusedAtDecode: number;
  /** Anything else. */
  readonly failed: number;
}

export interface PolicyFigures<Policy> extends Readonly<Record<ClassName, ClassFigures>> {
  readonly policy: Policy;
  /** Of requests that were refused after their prompts were computed. */
  readonly wastedPromptTokens: number;
  /** Of answers that were late. */
  readonly latePromptTokens: number;
}

export interface OverloadReport<Policy> {
  /** Medians of requests that ran alone. */
  readonly alone: Bounds;
  readonly bounds: Bounds;
  readonly requestsPerSecond: Readonly<Record<ClassName, number>>;
  readonly policies: readonly PolicyFigures<Policy>[];
}

/** Untimed requests of each class, from which instances learn their times, and timed ones. */
const warmups = 4;
const aloneRuns = 5;

interface Arrival {
  readonly atMs: number;
  readonly name: ClassName;
}

/** @throws Error if a request without load fails */
export async function benchOverload<Policy extends string>(
  bench: OverloadBench<Policy>,
): Promise<OverloadReport<Policy>> {
  const calibrated = await calibrate(bench);
  const { bounds, requestsPerSecond } = calibrated;
  const arrivals = classNames
    .flatMap((name, stream) => arrivalsOf(bench, name, requestsPerSecond[name], stream))
    .sort((a, b) => a.atMs - b.atMs);
  const policies: PolicyFigures<Policy>[] = [];
  for (const policy of bench.policies) {
    const figures = await measure(bench, policy, bounds, arrivals);
    policies.push(figures);
    const { chat, report } = figures;
    bench.onProgress(
      `${policy}: within SLO ${chat.withinSlo} of ${chat.sent} chats, ${report.withinSlo} of ${report.sent} reports`,
    );
  }
  return { ...calibrated, policies };
}

/** Times of each class alone, from which its bounds and its rate follow. */
async function calibrate<Policy extends string>(
  bench: OverloadBench<Policy>,
): Promise<Omit<OverloadReport<Policy>, 'policies'>> {
  const cluster = await bench.start('none', undefined);
  try {
    const sender = await Sender.connect(bench, cluster);
    const [chat, report] = [await sender.alone('chat'), await sender.alone('report')];
    const alone = { chat, report };
    const bound = ({ ttftMs, tbtMs }: ClassBounds): ClassBounds => ({
      ttftMs: Math.ceil(ttftMs * bench.ttftFactor),
      tbtMs: Math.ceil(tbtMs * bench.tbtFactor),
    });
    const rateOf = (name: ClassName): number =>
      (1000 * bench.overload * bench.classes[name].share * cluster.prefillInstances) / alone[name].ttftMs;
    return {
      alone,
      bounds: { chat: bound(chat), report: bound(report) },
      requestsPerSecond: { chat: round(rateOf('chat')), report: round(rateOf('report')) },
    };
  } finally {
    await cluster.close();
  }
}

function arrivalsOf<Policy extends string>(
  { seconds, seed }: OverloadBench<Policy>,
  name: ClassName,
  requestsPerSecond: number,
  stream: number,
): readonly Arrival[] {
  const prng = new Prng(seed, stream);
  const arrivals: Arrival[] = [];
  const nextMs = (): number => (1000 * prng.exponential()) / requestsPerSecond;
  for (let atMs = nextMs(); atMs < 1000 * seconds; atMs += nextMs()) arrivals.push({ atMs, name });
  return arrivals;
}

async function measure<Policy extends string>(
  bench: OverloadBench<Policy>,
  policy: Policy,
  bounds: Bounds,
  arrivals: readonly Arrival[],
): Promise<PolicyFigures<Policy>> {
  const cluster = await bench.start(policy, bounds);
  try {
    const sender = await Sender.connect(bench, cluster);
    for (const name of classNames) await sender.alone(name);
    const startMs = performance.now();
    const answers: Promise<readonly [ClassName, TimedAnswer]>[] = [];
    for (const { atMs, name } of arrivals) {
      const dueMs = startMs + atMs - performance.now();
      if (dueMs > 0) await sleep(dueMs);
      answers.push(sender.send(name, name).then((answer) => [name, answer]));
    }
    return figuresOf(policy, bounds, bench.classes, await Promise.all(answers));
  } finally {
    await cluster.close();
  }
}

class Sender {
  readonly #url: string;
  readonly #model: string;
  readonly #bench: Pick<OverloadBench<string>, 'classes' | 'vocabSize'>;
  #sent = 0;

  private constructor(url: string, model: string, bench: Pick<OverloadBench<string>, 'classes' | 'vocabSize'>) {
    this.#url = url;
    this.#model = model;
    this.#bench = bench;
  }

  static async connect(
    bench: Pick<OverloadBench<string>, 'classes' | 'vocabSize'>,
    { url }: OverloadedCluster,
  ): Promise<Sender> {
    return new Sender(url, await firstModel({ url, apiKey: undefined }), bench);
  }

  /** Medians over requests one after another. */
  async alone(name: ClassName): Promise<ClassBounds> {
    const answers: TimedAnswer[] = [];
    for (let i = 0; i < warmups + aloneRuns; i++) {
      // Without a class nothing is refused, also before the gateway has learned its predictions.
      const answer = await this.send(name, undefined);
      if (!answer.complete) throw new Error(`Cannot measure a ${name} alone: it ended with status ${answer.status}`);
      if (i >= warmups) answers.push(answer);
    }
    return {
      ttftMs: round(median(answers.flatMap(({ ttftMs }) => ttftMs ?? [])) ?? 0),
      tbtMs: round(median(answers.map(tbtMsOf)) ?? 0),
    };
  }

  /** A request with a prompt that no cache has. @param sloClass by which it is judged; undefined: by none */
  send(name: ClassName, sloClass: ClassName | undefined): Promise<TimedAnswer> {
    const { promptTokens, outputTokens, priority } = this.#bench.classes[name];
    const prompt = newPrompt(promptTokens, this.#bench.vocabSize, this.#sent++);
    const endpoint = { url: this.#url, model: this.#model, apiKey: undefined, now: () => performance.now() };
    return timedCompletion(endpoint, { prompt: [...prompt], maxTokens: outputTokens, priority, sloClass });
  }
}

function tbtMsOf({ gapsMs }: TimedAnswer): number {
  return gapsMs.length === 0 ? 0 : meanOfLongest(Float64Array.from(gapsMs), gapsMs.length);
}

/** Figures of one policy from the answers. */
export function figuresOf<Policy extends string>(
  policy: Policy,
  bounds: Bounds,
  classes: Readonly<Record<ClassName, Pick<RequestClass, 'promptTokens'>>>,
  answers: readonly (readonly [ClassName, TimedAnswer])[],
): PolicyFigures<Policy> {
  const empty = () => ({ sent: 0, withinSlo: 0, late: 0, refused: 0, refusedAtDecode: 0, failed: 0 });
  const figures = { chat: empty(), report: empty() };
  let [wastedPromptTokens, latePromptTokens] = [0, 0];
  for (const [name, answer] of answers) {
    const outcome = outcomeOf(answer, bounds[name]);
    figures[name].sent++;
    figures[name][outcome]++;
    if (outcome === 'refusedAtDecode') wastedPromptTokens += classes[name].promptTokens;
    if (outcome === 'late') latePromptTokens += classes[name].promptTokens;
  }
  return { policy, ...figures, wastedPromptTokens, latePromptTokens };
}

function outcomeOf(answer: TimedAnswer, { ttftMs, tbtMs }: ClassBounds): Exclude<keyof ClassFigures, 'sent'> {
  if (answer.status === 429) return 'refused';
  if (answer.status === 200 && answer.errorCode === 'kv_overloaded') return 'refusedAtDecode';
  if (!answer.complete || answer.ttftMs === undefined) return 'failed';
  return answer.ttftMs <= ttftMs && tbtMsOf(answer) <= tbtMs ? 'withinSlo' : 'late';
}
