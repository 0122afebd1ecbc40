// Turns request fields into the sampling parameters of the instance.
import { randomInt } from 'node:crypto';
import type { SamplingParams } from '../../core/protocol/ports.ts';
import { badField } from '../http/errors.ts';
import type { ServedModel } from '../http/served-model.ts';
import type { SharedBody } from './schema.ts';

/** The log-probabilities that the client requested. */
export interface LogprobRequest {
  /** Alternatives of each token; undefined: no log-probabilities requested. */
  readonly top: number | undefined;
  readonly prompt: boolean;
}

export function samplingParams(
  body: SharedBody,
  model: ServedModel,
  logprobs: LogprobRequest,
): Omit<SamplingParams, 'seed'> {
  const { defaults } = model;
  return {
    temperature: body.temperature ?? defaults.temperature,
    topP: body.top_p ?? defaults.topP,
    // Values above the vocabulary size mean all of it; larger numbers would overflow in the samplers.
    topK: Math.min(Math.max(0, body.top_k ?? defaults.topK), model.vocabSize),
    minP: body.min_p ?? defaults.minP,
    repetitionPenalty: body.repetition_penalty ?? defaults.repetitionPenalty,
    frequencyPenalty: body.frequency_penalty ?? 0,
    presencePenalty: body.presence_penalty ?? 0,
    logitBias: logitBias(body, model),
    topLogprobs: logprobs.top,
    promptLogprobs: logprobs.prompt,
  };
}

function logitBias(body: SharedBody, model: ServedModel): [number, number][] {
  return Object.entries(body.logit_bias ?? {}).map(([key, bias]) => {
    checkTokenId(Number(key), 'logit_bias', model);
    return [Number(key), bias];
  });
}

/** @throws ApiError 400 for an encoder, which generates no text */
export function checkGenerates({ id, generates, embedding }: ServedModel): void {
  if (generates !== false) return;
  const other = embedding === undefined ? 'ranks texts: send them to /v1/rerank' : 'is an encoder: use /v1/embeddings';
  throw badField('model', `Cannot generate: model '${id}' ${other}`, 'unsupported_model');
}

/** @throws ApiError 400 naming the field, the id and the vocabulary size */
export function checkTokenId(id: number, field: string, model: ServedModel): void {
  if (id < model.vocabSize) return;
  throw badField(
    field,
    `Cannot accept request: '${field}' has token id ${id}, the vocabulary has ${model.vocabSize} entries`,
  );
}

/** Seed of choice `index`: derived from the seed of the client, or random. */
export function choiceSeed(seed: number | undefined, index: number): [number, number] {
  if (seed === undefined) return [randomInt(2 ** 32), randomInt(2 ** 32)];
  const high = Math.floor(seed / 2 ** 32);
  return [seed >>> 0, (high + Math.imul(index, 0x9e3779b9)) >>> 0];
}

export function stopStrings(body: SharedBody): string[] {
  if (body.stop === undefined || body.stop === '') return [];
  return typeof body.stop === 'string' ? [body.stop] : body.stop;
}

export function stopTokenIds(body: SharedBody, model: ServedModel): number[] {
  for (const id of body.stop_token_ids ?? []) checkTokenId(id, 'stop_token_ids', model);
  const eos = body.ignore_eos === true ? [] : model.eosIds;
  return [...new Set([...eos, ...(body.stop_token_ids ?? [])])];
}
