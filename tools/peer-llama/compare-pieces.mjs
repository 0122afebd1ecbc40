// Compares our SentencePiece-style tokenizer with llama.cpp's, and records the ids that the tests expect.
// node tools/peer-llama/compare-pieces.mjs --peer DIR [--vocabulary FILE.gguf ...] [--record FILE.json]
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { createGgufTokenizer } from '../../dist/text/vocabulary/gguf-tokenizer.js';
import { openModel } from '../../dist/weights/open-model.js';
import { array, bool, string, u32, writeGgufFile } from '../write-gguf/gguf-file.mjs';
import { PeerValues } from './peer-values.mjs';
import { pieceVocabularies } from './piece-vocabulary.mjs';
import { allCharacters, markedTexts, mixtures, texts } from './token-texts.mjs';

/** llama.cpp strips white space behind control tokens if the model's name contains phi-3; ours if its architecture is phi3. */
function writeVocabulary(path, name, data) {
  const flags = { addBos: 'add_bos_token', addEos: 'add_eos_token', addSpacePrefix: 'add_space_prefix' };
  writeGgufFile(path, [
    ['general.architecture', string('llama')],
    ['general.name', string(data.stripAfterSpecial ? 'phi-3' : name)],
    ...['context_length', 'embedding_length', 'block_count', 'feed_forward_length', 'attention.head_count'].map((key) => [`llama.${key}`, u32(1)]),
    ['tokenizer.ggml.model', string('llama')],
    ['tokenizer.ggml.tokens', array('string', data.tokens)],
    ['tokenizer.ggml.token_type', array('i32', [...data.tokenTypes])],
    ['tokenizer.ggml.scores', array('f32', [...data.scores])],
    ['tokenizer.ggml.bos_token_id', u32(data.bosId)],
    ['tokenizer.ggml.eos_token_id', u32(data.eosId)],
    ['tokenizer.ggml.unknown_token_id', u32(data.unkId)],
    ...Object.entries(flags).flatMap(([key, to]) => (data[key] === undefined ? [] : [[`tokenizer.ggml.${to}`, bool(data[key])]])),
  ], []);
}

function vocabularies(paths) {
  const own = Object.entries(pieceVocabularies());
  const read = paths.map((path) => {
    const files = openModel(path);
    const { data } = files.tokenizer;
    files.close();
    return [path, data];
  });
  return [...own, ...read];
}

const { values: flags } = parseArgs({
  options: { peer: { type: 'string' }, vocabulary: { type: 'string', multiple: true, default: [] }, record: { type: 'string' } },
});
if (flags.peer === undefined) throw new Error('usage: compare-pieces.mjs --peer DIR, where npm install node-llama-cpp was run');
const folder = mkdtempSync(join(tmpdir(), 'kvasir-pieces-'));
const recorded = {};
try {
  for (const [name, data] of vocabularies(flags.vocabulary)) {
    const file = join(folder, 'vocabulary.gguf');
    writeVocabulary(file, name, data);
    const ours = createGgufTokenizer({ model: 'llama', ...data });
    const peer = await PeerValues.open({ folder: flags.peer, model: file, vocabularyOnly: true });
    const different = [];
    const compare = async (text, special) => {
      const got = ours.encode(text, { addSpecial: special, parseSpecial: special }).join(' ');
      const expected = (await (special ? peer.marked(text) : peer.tokens(text))).join(' ');
      if (got !== expected) different.push({ text, special, got, expected });
      return expected;
    };
    const all = [...texts, ...markedTexts];
    const lines = [];
    for (const text of all) lines.push([text, await compare(text, false), await compare(text, true)]);
    for (const text of [...mixtures(2000), ...mixtures(500, 7).map((text, at) => text + markedTexts[at % markedTexts.length])]) {
      await compare(text, false);
      await compare(text, true);
    }
    for (const text of allCharacters(64)) await compare(text, false);
    console.log(`${name}: ${different.length} texts differ`);
    for (const { text, special, got, expected } of different.sort((a, b) => a.text.length - b.text.length).slice(0, 6)) {
      console.log(`  ${JSON.stringify(text)}${special ? ', marked' : ''}\n    ours ${got}\n    peer ${expected}`);
    }
    if (!flags.vocabulary.includes(name)) recorded[name] = lines;
    peer.close();
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
if (flags.record !== undefined) {
  const cases = Object.entries(recorded).map(([name, lines]) => `${JSON.stringify(name)}: [\n${lines.map((line) => JSON.stringify(line)).join(',\n')}\n]`);
  writeFileSync(flags.record, `{\n${cases.join(',\n')}\n}\n`);
}
