// The WordPiece vocabulary of a GGUF file (`bert`) as a tokenizer.json. GGUF writes pieces that begin a word with U+2581
// before them, and pieces inside a word without the prefix `##`.
import { type GgufTokenizerData, tokenType } from './gguf-tokenizer-data.ts';

const wordStart = '\u2581';

/** @throws Error `Cannot build tokenizer: ...` if the begin, end or unknown token is missing, or two pieces are equal */
export function wordPieceTokenizerJson(data: GgufTokenizerData): object {
  const idOf = (text: string, stated: number | undefined): number => {
    const id = stated ?? data.tokens.indexOf(text);
    if (id < 0) throw new Error(`Cannot build tokenizer: the vocabulary has no ${text}`);
    return id;
  };
  const [cls, sep, unknown] = [
    idOf('[CLS]', data.clsId ?? data.bosId),
    idOf('[SEP]', data.sepId ?? data.eosId),
    idOf('[UNK]', data.unkId),
  ];
  const special = new Set([cls, sep, unknown]);
  for (const [id] of data.tokens.entries()) if (data.tokenTypes?.[id] === tokenType.control) special.add(id);
  const vocab = new Map(data.tokens.map((token, id) => [special.has(id) ? token : spelled(token), id]));
  if (vocab.size !== data.tokens.length)
    throw new Error(`Cannot build tokenizer: ${data.tokens.length} tokens have ${vocab.size} spellings`);
  const textOf = (id: number): string => data.tokens[id] ?? '';
  const marker = (id: number) => ({ SpecialToken: { id: textOf(id), type_id: 0 } });
  return {
    added_tokens: [...special].sort((a, b) => a - b).map((id) => ({ id, content: textOf(id), special: true })),
    normalizer: {
      ...{ type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true },
      ...{ strip_accents: null, lowercase: true },
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'TemplateProcessing',
      single: [marker(cls), { Sequence: { id: 'A', type_id: 0 } }, marker(sep)],
      pair: [],
      special_tokens: Object.fromEntries(
        [cls, sep].map((id) => [textOf(id), { id: textOf(id), ids: [id], tokens: [textOf(id)] }]),
      ),
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: false },
    model: {
      ...{ type: 'WordPiece', unk_token: textOf(unknown), continuing_subword_prefix: '##' },
      max_input_chars_per_word: 100,
      vocab: Object.fromEntries(vocab),
    },
  };
}

function spelled(token: string): string {
  return token.startsWith(wordStart) ? token.slice(wordStart.length) : `##${token}`;
}
