// The text side of a fleet whose engines render, tokenize and decode: the gateway has no tokenizer of their model.
import { ApiError, badField } from '../../../gateway/http/errors.ts';
import type { ServedModel } from '../../../gateway/http/served-model.ts';
import { EnginesUnavailable, EngineTokenizer, type TokenizeInput } from '../../../runtime/fleet/engine-tokenizer.ts';
import type { FleetCluster } from '../../../runtime/fleet/fleet-cluster.ts';
import { UsageError } from '../../usage-error.ts';
import type { TextSide } from '../model/text-side.ts';

const retryAfterMs = 1_000;
/** Engines check token ids against their vocabulary, which the gateway does not have. */
const vocabSize = 2 ** 31;
/** Those of the engine do not apply, and no file states others. */
const defaults = { temperature: 1, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1 };

/**
 * @param context undefined: no engine has stated it @param name for clients; undefined: that at the engines
 * @throws UsageError if no engine has answered, or none tokenizes
 */
export async function openEngineText(
  cluster: FleetCluster,
  context: number | undefined,
  name: string | undefined,
): Promise<TextSide> {
  const refused = (why: string): UsageError =>
    new UsageError(`Cannot use --fleet without the tokenizer of its model: ${why}: add --model`);
  const { model } = cluster;
  if (model === undefined) throw refused('no engine has answered, so the model is unknown');
  if (context === undefined) throw refused('no engine states its context');
  const tokenizer = new EngineTokenizer(() => cluster.servingEngines, model);
  try {
    await tokenizer.tokenize({ prompt: 'a', add_special_tokens: false });
  } catch (error) {
    throw refused(error instanceof Error ? error.message : String(error));
  }
  const tokenize = (input: TokenizeInput, field: string, signal: AbortSignal | undefined): Promise<Int32Array> =>
    tokenizer.tokenize(input, signal).catch((error: unknown) => {
      const message = error instanceof Error ? error.message : String(error);
      // Addresses of engines are for the operator, whose log has their outages.
      if (error instanceof EnginesUnavailable)
        throw new ApiError(503, 'Cannot tokenize: no engine answers', { code: 'not_ready', retryAfterMs });
      throw badField(field, message);
    });
  const served: ServedModel = {
    ...{ id: name ?? model, createdS: Math.floor(Date.now() / 1000), contextTokens: context, vocabSize },
    engineText: { chat: (chat, signal) => tokenize({ ...chat }, 'messages', signal) },
    ...{ tokenizer: undefined, chatTemplate: undefined, bosToken: undefined, eosToken: undefined, eosIds: [] },
    defaults,
  };
  return {
    model: served,
    encode: (prompt, addSpecial, request) =>
      tokenize({ prompt, add_special_tokens: addSpecial }, 'prompt', request?.signal),
    grammars: undefined,
    notes: [],
    warmUp: () => {},
    close: async () => {},
  };
}
