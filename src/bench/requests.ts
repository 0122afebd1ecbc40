// Greedy requests with pseudo-random prompts, which benches of live instances send.
import type { GenerationRequest } from '../core/protocol/ports.ts';

/** A request that always generates `maxTokens`. @param salt separates its prefix cache from others */
export function greedyRequest(id: string, prompt: Int32Array, maxTokens: number, salt: string): GenerationRequest {
  const sampling = {
    ...{ temperature: 0, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, frequencyPenalty: 0, presencePenalty: 0 },
    ...{ logitBias: [], seed: [0, 0] as const, topLogprobs: undefined, promptLogprobs: false },
  };
  return { id, prompt, maxTokens, sampling, stopTokenIds: [], priority: 0, salt };
}

/** Pseudo-random tokens, different for each `kind`. */
export function newPrompt(length: number, vocabSize: number, kind: number): Int32Array {
  return Int32Array.from({ length }, (_, i) => ((i + 1) * (2 * kind + 7919) + length) % vocabSize);
}
