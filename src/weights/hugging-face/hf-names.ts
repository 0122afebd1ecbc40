// Maps the spellings of a checkpoint's tensor names to one name for each tensor.

/**
 * Prefixes that a checkpoint may have, by how and with which library version it was saved. The longest match is
 * removed.
 */
const prefixes = [
  'language_model.model.',
  'model.language_model.',
  'language_model.',
  'model.decoder.',
  'decoder.',
  'transformer.',
  'gpt_neox.',
  'model.',
];

/** First name parts below the prefix, and those above it. */
const modules =
  /^(layers|h|norm|ln_f|final_layer_norm|embed_tokens|embed_positions|embed_in|wte|wpe|word_embeddings|word_embeddings_layernorm)\./;
const heads = /^(lm_head|embed_out)\./;

const familyPrefixes: ReadonlyMap<string, string> = new Map([
  ['opt', 'model.decoder.'],
  ['gpt2', 'transformer.'],
  ['bloom', 'transformer.'],
  ['gpt_neox', 'gpt_neox.'],
]);

const encoders: ReadonlySet<string> = new Set(['bert', 'nomic_bert']);

/** Without the prefix of a model with a head on top; norms of old checkpoints have gamma and beta. */
function encoderName(name: string): string {
  const bare = name.replace(/^(bert|model|nomic_bert)\./, '');
  return bare.replace(/LayerNorm\.gamma$/, 'LayerNorm.weight').replace(/LayerNorm\.beta$/, 'LayerNorm.bias');
}

/** @param architecture as src/models names it. A name that no prefix explains is returned unchanged. */
export function checkpointName(architecture: string, name: string): string {
  if (encoders.has(architecture)) return encoderName(name);
  const prefix = prefixes.find((candidate) => name.startsWith(candidate)) ?? '';
  const rest = name.slice(prefix.length);
  if (heads.test(rest)) return rest;
  return modules.test(rest) ? `${familyPrefixes.get(architecture) ?? 'model.'}${rest}` : name;
}
