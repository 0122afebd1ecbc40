// vLLM: token ids at /v1/completions, KV event sources at /kv_event_sources, memory and load at /metrics.
import { z } from 'zod';
import type { Grammar } from '../../core/protocol/grammar.ts';
import type { GenerationRequest, TokenLogprobs } from '../../core/protocol/ports.ts';
import {
  type BootstrapRendezvous,
  callBody,
  type EngineDescription,
  type EngineDialect,
  type HandOffDialect,
  type KvEventSource,
  logprobsOf,
  ranksMax,
  reachable,
  readSamples,
  resumedTokens,
  type StreamPiece,
  seedOf,
} from './engine-dialect.ts';
import { EngineHttp } from './engine-http.ts';

const timeoutMs = 5_000;

const modelsSchema = z.object({
  data: z.array(z.object({ id: z.string(), max_model_len: z.number().nullish() })).min(1),
});
const sourcesSchema = z.record(
  z.string(),
  z.object({
    publisher: z.string().nullish(),
    endpoint: z.string().optional(),
    replay_endpoint: z.string().nullish(),
    topic: z.string().nullish(),
  }),
);
const logprobsSchema = z.object({
  token_logprobs: z.array(z.number().nullable()),
  top_logprobs: z.array(z.record(z.string(), z.number()).nullable()).nullish(),
});
const chunkSchema = z.object({
  error: z.object({ message: z.string() }).optional(),
  choices: z
    .array(
      z.object({
        text: z.string().nullish(),
        token_ids: z.array(z.number()).nullish(),
        finish_reason: z.string().nullish(),
        logprobs: logprobsSchema.nullish(),
      }),
    )
    .optional(),
});

const prefillSchema = z.object({ kv_transfer_params: z.record(z.string(), z.unknown()).nullish() });

/** An engine hands its blocks over only if the length ends the output: a stop token must not. */
const prefillOnly = { stream: false, max_tokens: 1, min_tokens: 0, stop_token_ids: [] };

export const vllmDialect: EngineDialect = {
  kind: 'vllm',
  path: '/v1/completions',

  async describe(http): Promise<EngineDescription> {
    const { data } = modelsSchema.parse(await http.getJson('/v1/models', timeoutMs));
    const { body: metrics } = await http.get('/metrics', timeoutMs);
    const [cache] = readSamples(metrics, new Set(['vllm:cache_config_info']));
    const [blockTokens, blocks] = [cache?.labels.block_size, cache?.labels.num_gpu_blocks].map(Number);
    const isKnown = blockTokens > 0 && blocks > 0;
    return {
      models: data.map(({ id }) => id),
      contextTokens: data[0].max_model_len ?? undefined,
      capacityTokens: isKnown ? blockTokens * blocks : undefined,
      blockTokens: isKnown ? blockTokens : undefined,
      sources: await sourcesOf(http),
      // Without priority scheduling, which it does not state, vLLM refuses priorities.
      ...{ priorityOrder: 'smallest-first', takesPriorities: false },
    };
  },

  encode(request, { model, rank, priority }, extra) {
    const { sampling, maxTokens, minTokens = 0, stopTokenIds, grammar, salt, engineText } = request;
    const before = resumedTokens(request);
    const { topLogprobs } = sampling;
    const body = {
      model,
      max_tokens: maxTokens - before,
      ...{ stream: true, return_token_ids: true, skip_special_tokens: engineText?.keepsSpecial === false },
      // The stop tokens of the request are all: those of the engine's model are among them, unless it ignores them.
      ...{ ignore_eos: engineText?.ignoresEos ?? true, stop_token_ids: stopTokenIds },
      ...(minTokens > before && { min_tokens: minTokens - before }),
      temperature: sampling.temperature,
      ...(sampling.temperature > 0 && { seed: seedOf(request) }),
      ...{ top_p: sampling.topP, top_k: sampling.topK, min_p: sampling.minP },
      repetition_penalty: sampling.repetitionPenalty,
      frequency_penalty: sampling.frequencyPenalty,
      presence_penalty: sampling.presencePenalty,
      ...(sampling.logitBias.length > 0 && { logit_bias: Object.fromEntries(sampling.logitBias) }),
      ...(topLogprobs !== undefined && { logprobs: topLogprobs, return_tokens_as_token_ids: true }),
      ...(grammar && { structured_outputs: structuredOutputs(grammar) }),
      ...(salt !== '' && { cache_salt: salt }),
      ...(priority !== undefined && { priority }),
      ...extra,
    };
    const headers: Record<string, string> = { 'x-request-id': request.id };
    if (rank !== undefined) headers['x-data-parallel-rank'] = String(rank);
    return { headers, body: callBody(body, 'prompt', request) };
  },

  // NixlConnector: the answer of the prefill engine says where its blocks are.
  handOff: {
    order: 'sequential',
    prefill: () => ({
      ...prefillOnly,
      kv_transfer_params: {
        ...{ do_remote_decode: true, do_remote_prefill: false, remote_engine_id: null, remote_block_ids: null },
        ...{ remote_host: null, remote_port: null },
      },
    }),
    decode: (_, params) => ({ kv_transfer_params: params }),
    paramsOf: (body) => prefillSchema.parse(JSON.parse(body)).kv_transfer_params ?? undefined,
  },

  reader: (request) => ({ read: (data) => readChunk(data, request) }),

  gauges: {
    running: 'vllm:num_requests_running',
    waiting: 'vllm:num_requests_waiting',
    usage: 'vllm:kv_cache_usage_perc',
    rankLabel: 'engine',
  },
};

function readChunk(data: string, { sampling: { topLogprobs } }: GenerationRequest): StreamPiece | undefined {
  const { error, choices = [] } = chunkSchema.parse(JSON.parse(data));
  if (error !== undefined) throw new Error(error.message);
  const [choice] = choices;
  if (choice === undefined) return undefined;
  const { text, token_ids: ids, finish_reason: reason, logprobs } = choice;
  if (ids === undefined || ids === null)
    throw new Error('the engine does not return token ids: it needs vLLM 0.10.2 or later');
  return {
    tokens: Int32Array.from(ids),
    text: text ?? '',
    logprobs: topLogprobs === undefined || !logprobs ? undefined : tokenLogprobs(logprobs, topLogprobs),
    cachedTokens: undefined,
    finished:
      reason === undefined || reason === null ? undefined : reason === 'stop' || reason === 'length' ? reason : 'abort',
  };
}

function tokenLogprobs({ token_logprobs, top_logprobs }: z.infer<typeof logprobsSchema>, width: number): TokenLogprobs {
  const alternatives = (top_logprobs ?? []).map((top) =>
    Object.entries(top ?? {}).map(([name, logprob]) => [Number(name.replace('token_id:', '')), logprob] as const),
  );
  const chosen = token_logprobs.map((logprob) => logprob ?? Number.NEGATIVE_INFINITY);
  return logprobsOf(chosen, alternatives, width);
}

function structuredOutputs({ kind, text }: Grammar): Record<string, string> {
  const names = { json_schema: 'json', regex: 'regex', ebnf: 'grammar', structural_tag: 'structural_tag' } as const;
  return { [names[kind]]: text };
}

/** Versions without the endpoint name no source: the configuration of the fleet may. */
async function sourcesOf(http: EngineHttp): Promise<readonly (KvEventSource | undefined)[]> {
  const { status, body } = await http.get('/kv_event_sources', timeoutMs);
  if (status !== 200) return [undefined];
  const byRank = sourcesSchema.parse(JSON.parse(body));
  const ranks = Object.keys(byRank).map(Number);
  if (ranks.length === 0) return [undefined];
  if (!ranks.every((rank) => Number.isInteger(rank) && rank >= 0 && rank < ranksMax))
    throw new Error(`/kv_event_sources names ranks that are not integers below ${ranksMax}`);
  const host = http.url.hostname;
  return Array.from({ length: Math.max(...ranks) + 1 }, (_, rank) => {
    const { publisher, endpoint, replay_endpoint: replay, topic } = byRank[String(rank)] ?? {};
    if (publisher !== 'zmq' || endpoint === undefined) return undefined;
    return {
      endpoint: reachable(endpoint, host),
      replay: replay ? reachable(replay, host) : undefined,
      topic: topic ?? '',
    };
  });
}

const bootstrapSchema = z.record(z.string(), z.object({ engine_id: z.string() }));

/**
 * MooncakeConnector: the bootstrap server of the prefill engine names it, and both engines get one transfer id, by which
 * the decode engine pulls the blocks.
 * @param url of the bootstrap server
 */
export function mooncakeHandOff(url: string): HandOffDialect {
  const http = new EngineHttp(url, undefined);
  let known: Promise<z.infer<typeof bootstrapSchema>> | undefined;
  const named = (): Promise<z.infer<typeof bootstrapSchema>> => {
    known ??= http.getJson('/query', timeoutMs).then((answer) => bootstrapSchema.parse(answer));
    known.catch(() => {
      known = undefined;
    });
    return known;
  };
  const transferOf = ({ bootstrapRoom }: BootstrapRendezvous) => ({ transfer_id: `kvasir-${bootstrapRoom}` });
  return {
    order: 'queried',
    async query(rank) {
      const id = (await named())[String(rank)]?.engine_id;
      if (id !== undefined) return { remote_bootstrap_addr: url, remote_engine_id: id };
      // Ranks register with the bootstrap server one after the other.
      known = undefined;
      throw new Error(`/query of ${url} does not name rank ${rank}`);
    },
    prefill: (rendezvous) => ({
      ...prefillOnly,
      kv_transfer_params: { do_remote_decode: true, do_remote_prefill: false, ...transferOf(rendezvous) },
    }),
    decode: (rendezvous, params) => ({
      kv_transfer_params: {
        ...{ do_remote_decode: false, do_remote_prefill: true, ...transferOf(rendezvous) },
        ...(params as object),
      },
    }),
    paramsOf: () => undefined,
  };
}
