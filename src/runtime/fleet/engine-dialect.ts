// What differs between the kinds of engines: how they describe themselves, take requests, stream tokens and report load.
import type { EngineLoad } from '../../core/fleet/engine-load.ts';
import type { HandOffOrder } from '../../core/fleet/hand-off.ts';
import type { EngineKind, InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationRequest, TokenLogprobs } from '../../core/protocol/ports.ts';
import type { EngineHttp } from './engine-http.ts';

/** Where a data-parallel rank publishes KV events. */
export interface KvEventSource {
  /** tcp://HOST:PORT */
  readonly endpoint: string;
  /** Undefined: lost batches cannot be replayed. */
  readonly replay?: string | undefined;
  readonly topic: string;
}

/** Where a data-parallel rank pushes its load. */
export interface LoadSource {
  /** tcp://HOST:PORT */
  readonly endpoint: string;
  readonly topic: string;
}

export interface EngineDescription {
  /** Models by the names that requests use; the first one is the base model. */
  readonly models: readonly string[];
  /** Prompt plus output; undefined: not stated. */
  readonly contextTokens: number | undefined;
  /** Tokens of KV memory of one rank; undefined: not stated. */
  readonly capacityTokens: number | undefined;
  /** Tokens of a block of KV memory; undefined: not stated. */
  readonly blockTokens: number | undefined;
  /** (data-parallel ranks): undefined: the rank publishes no KV events. */
  readonly sources: readonly (KvEventSource | undefined)[];
  /** (data-parallel ranks); undefined: its load is polled. */
  readonly loads?: readonly LoadSource[] | undefined;
  /** Undefined: not stated. */
  readonly role?: EngineRole | undefined;
  /** Which values of a request's `priority` run first. */
  readonly priorityOrder: 'largest-first' | 'smallest-first';
  /** Requests may have a priority: the engine schedules by it. */
  readonly takesPriorities: boolean;
  /** In place of that of the dialect. */
  readonly handOff?: HandOffDialect | undefined;
  /** Of the bootstrap server of a prefill engine; undefined: not stated. */
  readonly bootstrapPort?: number | undefined;
}

export const engineRoles = ['mixed', 'prefill', 'decode'] as const satisfies readonly InstanceRole[];
export type EngineRole = (typeof engineRoles)[number];

/** The bootstrap server over which two engines hand off one request. */
export interface BootstrapRendezvous {
  readonly host: string;
  readonly port: number | undefined;
  /** Names the request there; unique. */
  readonly bootstrapRoom: number;
}

type Fields = Readonly<Record<string, unknown>>;

/** Fields by which one engine computes a prompt and another one decodes it. */
export interface HandOffDialect {
  readonly order: HandOffOrder;
  /**
   * With the order `queried`: what the bootstrap server states for the decode engine.
   * @param rank of the prefill engine @throws Error in one line if it states nothing
   */
  query?(rank: number): Promise<unknown>;
  /** Of the call of the prefill engine. */
  prefill(rendezvous: BootstrapRendezvous): Fields;
  /** Of the call of the decode engine. @param params of the prefill engine, or of its bootstrap server */
  decode(rendezvous: BootstrapRendezvous, params: unknown): Fields;
  /** What the prefill engine states for the decode engine; undefined: nothing. @param body of its answer */
  paramsOf(body: string): unknown;
}

/** Names of the gauges of an engine's load, and of the label that tells its ranks apart. */
export interface LoadGauges extends Readonly<Record<keyof EngineLoad, string>> {
  readonly rankLabel: string;
}

/** A part of an answer. */
export interface StreamPiece {
  readonly tokens: Int32Array;
  /** Of the tokens, as the engine decodes them. */
  readonly text: string;
  readonly logprobs: TokenLogprobs | undefined;
  /** Prompt tokens that the engine found in its prefix cache; undefined: not stated. */
  readonly cachedTokens: number | undefined;
  /** `abort`: the engine has aborted the request. */
  readonly finished: 'stop' | 'length' | 'abort' | undefined;
}

/** Reads the events of one answer. */
export interface StreamReader {
  /** Undefined: the event has nothing of the output. @throws Error in one line if the event is an error */
  read(data: string): StreamPiece | undefined;
}

/** The model and the rank of a call, by the engine's names. */
export interface CallTarget {
  readonly model: string;
  /** Undefined: the engine chooses. */
  readonly rank: number | undefined;
  /** In the engine's order; undefined: the engine takes none. */
  readonly priority: number | undefined;
}

/** The KV event source, or the load source, of a rank: ports grow by the rank. @param source of the first rank */
export function atRank<T extends KvEventSource | LoadSource>(source: T, rank: number): T {
  const shifted = (address: string): string => address.replace(/\d+$/, (port) => String(Number(port) + rank));
  const { endpoint, replay } = { replay: undefined, ...source };
  return { ...source, endpoint: shifted(endpoint), ...(replay !== undefined && { replay: shifted(replay) }) };
}

export interface EngineDialect {
  readonly kind: EngineKind;
  /** Of generation. */
  readonly path: string;
  /** @throws Error in one line if the engine does not describe itself */
  describe(http: EngineHttp): Promise<EngineDescription>;
  readonly handOff: HandOffDialect;
  /** @param extra further fields of the call */
  encode(
    request: GenerationRequest,
    target: CallTarget,
    extra?: Fields,
  ): { readonly headers: Readonly<Record<string, string>>; readonly body: string };
  reader(request: GenerationRequest): StreamReader;
  readonly gauges: LoadGauges;
}

/** Data-parallel ranks of an engine. */
export const ranksMax = 1024;

/** The body of a call: `fields`, and as `promptField` the prompt of the attempt, with the output that the client has. */
export function callBody(fields: Fields, promptField: string, { prompt, resumed }: GenerationRequest): string {
  const parts = resumed === undefined || resumed.tokens.length === 0 ? [prompt] : [prompt, resumed.tokens];
  return `${JSON.stringify(fields).slice(0, -1)},"${promptField}":[${parts.map(joined).join()}]}`;
}

/** Ids at once: the buffer of their digits stays small. */
const idsAtOnce = 4096;
/** Of an id from 0 to 2^31 - 1, and a comma. */
const digitsMax = 11;
let digits = Buffer.alloc(0);

/** Ids from 0 on, with commas between them: `join` takes four times as long. */
function joined(ids: Int32Array): string {
  const parts: string[] = [];
  for (let from = 0; from < ids.length; from += idsAtOnce) parts.push(joinedPart(ids.subarray(from, from + idsAtOnce)));
  return parts.join();
}

function joinedPart(ids: Int32Array): string {
  if (digits.length === 0) digits = Buffer.alloc(idsAtOnce * digitsMax);
  let at = digits.length;
  for (let i = ids.length - 1; i >= 0; i--) {
    let rest = ids[i];
    do {
      const tens = Math.trunc(rest / 10);
      digits[--at] = 48 + rest - tens * 10;
      rest = tens;
    } while (rest > 0);
    if (i > 0) digits[--at] = 44;
  }
  return digits.toString('latin1', at);
}

export function resumedTokens({ resumed }: GenerationRequest): number {
  return resumed?.tokens.length ?? 0;
}

/** Below 2^53. A continued request draws other random numbers than its first tokens. */
export function seedOf({ sampling: { seed }, resumed }: GenerationRequest): number {
  return (seed[0] >>> 0) + ((seed[1] >>> 0) % 2 ** 20) * 2 ** 32 + (resumed?.tokens.length ?? 0);
}

/** Log-probabilities of tokens from lists of alternatives, best first. @param width alternatives per token */
export function logprobsOf(
  chosen: readonly number[],
  alternatives: readonly (readonly (readonly [token: number, logprob: number])[])[],
  width: number,
): TokenLogprobs {
  const topTokens = new Int32Array(chosen.length * width);
  const topLogprobs = new Float32Array(chosen.length * width).fill(Number.NEGATIVE_INFINITY);
  for (const [i, given] of alternatives.entries()) {
    const best = [...given].sort(([, a], [, b]) => b - a).slice(0, width);
    for (const [j, [token, logprob]] of best.entries()) {
      topTokens[i * width + j] = token;
      topLogprobs[i * width + j] = logprob;
    }
  }
  return { logprobs: Float32Array.from(chosen), width, topTokens, topLogprobs };
}

/** A sample of the text format of Prometheus. */
export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

/** The samples with one of these names. */
export function readSamples(text: string, names: ReadonlySet<string>): readonly Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('#')) continue;
    const name = /^[\w:]+/.exec(line)?.[0] ?? '';
    if (!names.has(name)) continue;
    const end = line[name.length] === '{' ? line.lastIndexOf('}') : name.length - 1;
    const labels: Record<string, string> = {};
    for (const [, label, value] of line.slice(name.length, end + 1).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[label] = value;
    samples.push({
      name,
      labels,
      value: Number(
        line
          .slice(end + 1)
          .trim()
          .split(' ')[0],
      ),
    });
  }
  return samples;
}

/** (ranks); a gauge that is not there, or no finite number from 0 on, is 0. @param text in the text format of Prometheus */
export function readLoads(text: string, ranks: number, gauges: LoadGauges): readonly EngineLoad[] {
  const { running, waiting, usage, rankLabel } = gauges;
  const samples = readSamples(text, new Set([running, waiting, usage]));
  const of = (rank: number, name: string): number => {
    const isOf = (labels: Readonly<Record<string, string>>) => ranks === 1 || labels[rankLabel] === String(rank);
    const { value = 0 } = samples.find((sample) => sample.name === name && isOf(sample.labels)) ?? {};
    return Number.isFinite(value) && value >= 0 ? value : 0;
  };
  return Array.from({ length: ranks }, (_, rank) => ({
    running: of(rank, running),
    waiting: of(rank, waiting),
    usage: Math.min(1, of(rank, usage)),
  }));
}

/** An endpoint as the engine binds it, as a client connects to it: a wildcard is the host of the engine's URL. */
export function reachable(endpoint: string, host: string): string {
  return endpoint.replace(/^tcp:\/\/(\*|0\.0\.0\.0|\[::\])(?=:\d+$)/, `tcp://${host}`);
}
