// A small SentencePiece-style vocabulary with everything that files of Llama 2, Gemma and Phi-3 use: bytes, control and user-defined tokens, pieces.

const types = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 };

/** Characters that are tokens; any other is encoded as bytes. */
const characters = ['▁', ...Array.from({ length: 94 }, (_, at) => String.fromCharCode(33 + at)), ...'éäñßшиΩλ你好世界日本語한국😀👍½٣…“”'];
const control = ['<|user|>', '<|assistant|>', '<|end|>', '<|endoftext|>', '<start_of_turn>', '<end_of_turn>'];
// Files store the spaces of such tokens as spaces.
const userDefined = ['\n\n', '\n\n\n', '\t\t', '  ', '   ', '<table>', '</table>', '[tool]', '<0xZZ>'];

/**
 * @returns {{ tokens: string[], scores: number[], tokenTypes: number[], bosId: number, eosId: number, unkId: number }}
 */
function pieceVocabulary() {
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const letters = [...'▁etaoinshrdlu.,\'1239ABши你好世😀'];
  const pairs = letters.flatMap((left) => letters.map((right) => left + right));
  const longer = pairs.flatMap((pair, at) => letters.filter((_, which) => (at * 7 + which * 13) % 31 === 0).map((letter) => pair + letter));
  const words = ['▁hello', '▁world', '▁the', 'ing', '▁▁▁▁', '▁you', "'ll", '▁世界'];
  const pieces = [...new Set([...pairs, ...longer, ...words])];
  const entries = [
    ['<unk>', types.unknown, 0],
    ['<s>', types.control, 0],
    ['</s>', types.control, 0],
    ...bytes.map((token) => [token, types.byte, 0]),
    ...control.map((token) => [token, types.control, -1000]),
    ...userDefined.map((token) => [token, types.userDefined, -1000]),
    ['<unused0>', types.unused, -1000],
    ...pieces.map((token, at) => [token, types.normal, -1 - ((at * 7919) % 1009)]),
    ...characters.map((token, at) => [token, types.normal, -2000 - at]),
  ];
  return {
    tokens: entries.map(([token]) => token),
    tokenTypes: entries.map(([, type]) => type),
    scores: entries.map(([, , score]) => score),
    bosId: 1,
    eosId: 2,
    unkId: 0,
  };
}

/** Vocabularies with the settings of these model families. */
export function pieceVocabularies() {
  const vocabulary = pieceVocabulary();
  // Phi-3 has no tokens of white space alone.
  const tokenTypes = vocabulary.tokenTypes.map((type, id) => (type === types.userDefined && /^\s+$/.test(vocabulary.tokens[id]) ? types.unused : type));
  return {
    llama: vocabulary,
    gemma: { ...vocabulary, addSpacePrefix: false, addBos: true, addEos: false },
    phi3: { ...vocabulary, tokenTypes, addBos: false, stripAfterSpecial: true },
  };
}
