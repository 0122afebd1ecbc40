// Which name a checkpoint's tensor goes by: the spellings of one family's tensors, brought to one.

/** Prefixes that saving a model alone, inside another, or by an older library gives or leaves out; the longest that fits is taken off. */
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

/** First parts of names under the prefix, and of those above it. */
const modules =
  /^(layers|h|norm|ln_f|final_layer_norm|embed_tokens|embed_positions|embed_in|wte|wpe|word_embeddings|word_embeddings_layernorm)\./;
const heads = /^(lm_head|embed_out)\./;

const familyPrefixes: ReadonlyMap<string, string> = new Map([
  ['opt', 'model.decoder.'],
  ['gpt2', 'transformer.'],
  ['bloom', 'transformer.'],
  ['gpt_neox', 'gpt_neox.'],
]);

/** @param architecture as the models room spells it. Names that no prefix explains stay as they are. */
export function checkpointName(architecture: string, name: string): string {
  const prefix = prefixes.find((candidate) => name.startsWith(candidate)) ?? '';
  const rest = name.slice(prefix.length);
  if (heads.test(rest)) return rest;
  return modules.test(rest) ? `${familyPrefixes.get(architecture) ?? 'model.'}${rest}` : name;
}
