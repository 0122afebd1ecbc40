// SGLang: token ids at /generate, KV event sources and memory at /server_info, load at /metrics.
import { z } from 'zod';
import type { Grammar } from '../../core/protocol/grammar.ts';
import type { TokenLogprobs } from '../../core/protocol/ports.ts';
import {
  atRank,
  type BootstrapRendezvous,
  callBody,
  type EngineDescription,
  type EngineDialect,
  engineRoles,
  type KvEventSource,
  type LoadSource,
  logprobsOf,
  ranksMax,
  resumedTokens,
  type StreamPiece,
  type StreamReader,
  seedOf,
} from './engine-dialect.ts';
import type { EngineHttp } from './engine-http.ts';

const timeoutMs = 5_000;
const bootstrapPortDefault = 8998;
const loadTopic = 'load';

const modelsSchema = z.object({
  data: z.array(z.object({ id: z.string(), max_model_len: z.number().nullish() })).min(1),
});
const infoSchema = z.object({
  max_total_num_tokens: z.number().nullish(),
  page_size: z.number().nullish(),
  dp_size: z.int().min(1).max(ranksMax).nullish(),
  disaggregation_mode: z.string().nullish(),
  disaggregation_bootstrap_port: z.number().nullish(),
  enable_priority_scheduling: z.boolean().nullish(),
  schedule_low_priority_values_first: z.boolean().nullish(),
  kv_events: z
    .object({
      publisher: z.string().nullish(),
      endpoint_host: z.string().nullish(),
      endpoint_port_base: z.int().nullish(),
      replay_endpoint_port_base: z.int().nullish(),
      load_endpoint_port_base: z.int().nullish(),
      load_topic: z.string().nullish(),
      topic: z.string().nullish(),
      block_size: z.number().nullish(),
      dp_size: z.int().min(1).max(ranksMax).nullish(),
    })
    .nullish(),
});
/** A token: its log-probability, its id, its text. */
const tokenLogprob = z.tuple([z.number().nullable(), z.number()]).rest(z.unknown());
const chunkSchema = z.object({
  error: z.object({ message: z.string() }).optional(),
  text: z.string().nullish(),
  output_ids: z.array(z.number()).optional(),
  meta_info: z
    .object({
      finish_reason: z.union([z.object({ type: z.string() }), z.string()]).nullish(),
      cached_tokens: z.number().nullish(),
      completion_tokens: z.number().nullish(),
      output_token_logprobs: z.array(tokenLogprob).nullish(),
      output_top_logprobs: z.array(z.array(tokenLogprob).nullable()).nullish(),
    })
    .optional(),
});
type MetaInfo = NonNullable<z.infer<typeof chunkSchema>['meta_info']>;

export const sglangDialect: EngineDialect = {
  kind: 'sglang',
  path: '/generate',

  async describe(http): Promise<EngineDescription> {
    const { data } = modelsSchema.parse(await http.getJson('/v1/models', timeoutMs));
    const info = infoSchema.parse(await http.getJson('/server_info', timeoutMs));
    return {
      models: data.map(({ id }) => id),
      contextTokens: data[0].max_model_len ?? undefined,
      capacityTokens: info.max_total_num_tokens ?? undefined,
      blockTokens: info.kv_events?.block_size ?? info.page_size ?? undefined,
      sources: sourcesOf(info, http),
      loads: loadsOf(info, http),
      priorityOrder: info.schedule_low_priority_values_first === true ? 'smallest-first' : 'largest-first',
      takesPriorities: info.enable_priority_scheduling === true,
      role: engineRoles.find((role) => role === info.disaggregation_mode),
      bootstrapPort: info.disaggregation_bootstrap_port ?? undefined,
    };
  },

  encode(request, { rank, priority }, extra) {
    const { sampling, maxTokens, minTokens = 0, stopTokenIds, grammar, salt, engineText } = request;
    const before = resumedTokens(request);
    const { topLogprobs } = sampling;
    const sampling_params = {
      max_new_tokens: maxTokens - before,
      ...(minTokens > before && { min_new_tokens: minTokens - before }),
      ...{ ignore_eos: engineText?.ignoresEos ?? true, stop_token_ids: stopTokenIds },
      skip_special_tokens: engineText?.keepsSpecial === false,
      temperature: sampling.temperature,
      ...(sampling.temperature > 0 && { sampling_seed: seedOf(request) % 2 ** 31 }),
      ...{ top_p: sampling.topP, top_k: sampling.topK === 0 ? -1 : sampling.topK, min_p: sampling.minP },
      repetition_penalty: sampling.repetitionPenalty,
      frequency_penalty: sampling.frequencyPenalty,
      presence_penalty: sampling.presencePenalty,
      ...(sampling.logitBias.length > 0 && { logit_bias: Object.fromEntries(sampling.logitBias) }),
      ...(grammar && grammarOf(grammar)),
    };
    const body = {
      ...{ rid: request.id, sampling_params, stream: true },
      ...(topLogprobs !== undefined && { return_logprob: true, top_logprobs_num: topLogprobs }),
      ...(salt !== '' && { cache_salt: salt }),
      ...(priority !== undefined && { priority }),
      ...(rank !== undefined && { routed_dp_rank: rank, data_parallel_rank: rank }),
    };
    return { headers: {}, body: callBody({ ...body, ...extra }, 'input_ids', request) };
  },

  // Both engines use one room of the prefill engine's bootstrap server.
  handOff: {
    order: 'concurrent',
    prefill: (rendezvous) => ({ stream: false, ...bootstrapOf(rendezvous) }),
    decode: bootstrapOf,
    paramsOf: () => undefined,
  },

  reader: ({ sampling: { topLogprobs } }) => new SglangReader(topLogprobs),

  gauges: {
    running: 'sglang:num_running_reqs',
    waiting: 'sglang:num_queue_reqs',
    usage: 'sglang:token_usage',
    rankLabel: 'dp_rank',
  },
};

/** A chunk has all tokens so far, or with `--incremental-streaming-output` the new ones: `completion_tokens` counts all. */
class SglangReader implements StreamReader {
  readonly #width: number | undefined;
  #received = 0;
  #characters = 0;

  constructor(width: number | undefined) {
    this.#width = width;
  }

  read(data: string): StreamPiece | undefined {
    const { error, text, output_ids: ids = [], meta_info: meta } = chunkSchema.parse(JSON.parse(data));
    if (error !== undefined) throw new Error(error.message);
    if (meta === undefined) return undefined;
    const total = meta.completion_tokens ?? ids.length;
    const fresh = Math.max(0, Math.min(ids.length, total - this.#received));
    this.#received += fresh;
    const tokens = Int32Array.from(fresh === 0 ? [] : ids.slice(-fresh));
    return {
      tokens,
      text: this.#newText(text ?? '', ids.length === total),
      logprobs: this.#width === undefined || fresh === 0 ? undefined : tokenLogprobs(meta, fresh, this.#width),
      cachedTokens: meta.cached_tokens ?? undefined,
      finished: finishOf(meta),
    };
  }

  /** @param isWhole the chunk has all tokens so far */
  #newText(text: string, isWhole: boolean): string {
    const fresh = isWhole ? text.slice(this.#characters) : text;
    this.#characters += fresh.length;
    return fresh;
  }
}

function finishOf({ finish_reason: reason }: MetaInfo): StreamPiece['finished'] {
  if (reason === undefined || reason === null) return undefined;
  const type = typeof reason === 'string' ? reason : reason.type;
  return type === 'stop' || type === 'length' ? type : 'abort';
}

function tokenLogprobs(meta: MetaInfo, fresh: number, width: number): TokenLogprobs | undefined {
  const chosen = (meta.output_token_logprobs ?? []).slice(-fresh);
  if (chosen.length < fresh) return undefined;
  const top = (meta.output_top_logprobs ?? []).slice(-fresh);
  return logprobsOf(
    chosen.map(([logprob]) => logprob ?? Number.NEGATIVE_INFINITY),
    top.map((each) => (each ?? []).map(([logprob, token]) => [token, logprob ?? Number.NEGATIVE_INFINITY] as const)),
    width,
  );
}

function bootstrapOf({ host, port, bootstrapRoom }: BootstrapRendezvous): Readonly<Record<string, unknown>> {
  return { bootstrap_host: host, bootstrap_port: port ?? bootstrapPortDefault, bootstrap_room: bootstrapRoom };
}

function grammarOf({ kind, text }: Grammar): Record<string, string> {
  return { [kind]: text };
}

/** The port is at the host of the engine, wherever its KV events are. */
function loadsOf({ kv_events: events, dp_size }: z.infer<typeof infoSchema>, { url }: EngineHttp) {
  const port = events?.load_endpoint_port_base;
  if (port === undefined || port === null) return undefined;
  const first: LoadSource = { endpoint: `tcp://${url.hostname}:${port}`, topic: events?.load_topic ?? loadTopic };
  return Array.from({ length: events?.dp_size ?? dp_size ?? 1 }, (_, rank) => atRank(first, rank));
}

function sourcesOf({ kv_events: events, dp_size }: z.infer<typeof infoSchema>, { url }: EngineHttp) {
  const ranks = events?.dp_size ?? dp_size ?? 1;
  const {
    publisher,
    endpoint_host: stated,
    endpoint_port_base: port,
    replay_endpoint_port_base: replay,
  } = events ?? {};
  const host = stated && stated !== '*' && stated !== '0.0.0.0' ? stated : url.hostname;
  return Array.from({ length: ranks }, (_, rank): KvEventSource | undefined => {
    if (publisher !== 'zmq' || port === undefined || port === null) return undefined;
    return {
      endpoint: `tcp://${host}:${port + rank}`,
      replay: replay ? `tcp://${host}:${replay + rank}` : undefined,
      topic: events?.topic ?? '',
    };
  });
}
