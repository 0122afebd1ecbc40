// Compares our byte-level tokenizers with llama.cpp's, pre-tokenizer by pre-tokenizer, and records the ids that the tests expect.
// node tools/peer-llama/compare-tokens.mjs --peer DIR [--pre NAME,...] [--vocabulary FILE.gguf ...] [--all] [--record FILE.json]
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { createGgufTokenizer } from '../../dist/text/vocabulary/gguf-tokenizer.js';
import { preTokenizerNames } from '../../dist/text/vocabulary/pre-tokenizers.js';
import { openModel } from '../../dist/weights/open-model.js';
import { array, string, u32, writeGgufFile } from '../write-gguf/gguf-file.mjs';
import { pairVocabulary } from './pair-vocabulary.mjs';
import { PeerValues } from './peer-values.mjs';
import { allCharacters, mixtures, texts } from './token-texts.mjs';

const plain = { addSpecial: false, parseSpecial: false };

/** The vocabulary of a GGUF file, or without a path the one of pair-vocabulary.mjs. */
function vocabularyOf(path) {
  if (path === undefined) return { name: 'pairs', ...pairVocabulary() };
  const files = openModel(path);
  const { data } = files.tokenizer;
  files.close();
  return { name: path, tokens: data.tokens, merges: data.merges, tokenTypes: data.tokenTypes };
}

function writeVocabulary(path, { tokens, merges, tokenTypes }, pre) {
  const types = tokenTypes ?? tokens.map(() => 1);
  writeGgufFile(path, [
    ['general.architecture', string('llama')],
    ['llama.context_length', u32(64)],
    ['llama.embedding_length', u32(64)],
    ['llama.block_count', u32(1)],
    ['llama.feed_forward_length', u32(64)],
    ['llama.attention.head_count', u32(1)],
    ['tokenizer.ggml.model', string('gpt2')],
    ['tokenizer.ggml.pre', string(pre)],
    ['tokenizer.ggml.tokens', array('string', tokens)],
    ['tokenizer.ggml.token_type', array('i32', [...types])],
    ['tokenizer.ggml.merges', array('string', merges)],
    ['tokenizer.ggml.bos_token_id', u32(0)],
    ['tokenizer.ggml.eos_token_id', u32(0)],
  ], []);
}

const same = (a, b) => a.length === b.length && a.every((id, at) => id === b[at]);

/** The texts that the two tokenizers encode differently. */
async function differencesIn(ours, peer, candidates) {
  const found = [];
  for (const text of candidates) {
    if (!same(ours.encode(text, plain), await peer.tokens(text))) found.push(text);
  }
  return found;
}

/** Code points whose texts are encoded differently, found by bisection over blocks of characters. */
async function charactersThatDiffer(ours, peer) {
  const found = [];
  for (let from = 0; from < 0x110000; from += 1024) {
    const [text] = allCharacters(1024, from, from + 1024);
    if (text === undefined || (await differencesIn(ours, peer, [text])).length === 0) continue;
    for (let block = from; block < from + 1024; block += 16) {
      if ((await differencesIn(ours, peer, allCharacters(16, block, block + 16))).length === 0) continue;
      for (let code = block; code < block + 16; code++) {
        if ((await differencesIn(ours, peer, allCharacters(1, code, code + 1))).length > 0) found.push(code);
      }
    }
  }
  return found;
}

function ranges(codes) {
  const runs = [];
  for (const code of codes) {
    const last = runs.at(-1);
    if (last !== undefined && last[1] === code - 1) last[1] = code;
    else runs.push([code, code]);
  }
  return runs.map(([from, to]) => (from === to ? from.toString(16) : `${from.toString(16)}-${to.toString(16)}`)).join(' ');
}

const { values: flags } = parseArgs({
  options: {
    peer: { type: 'string' },
    pre: { type: 'string' },
    vocabulary: { type: 'string', multiple: true },
    all: { type: 'boolean', default: false },
    record: { type: 'string' },
  },
});
if (flags.peer === undefined) throw new Error('usage: compare-tokens.mjs --peer DIR, where npm install node-llama-cpp was run');
const folder = mkdtempSync(join(tmpdir(), 'kvasir-tokens-'));
const recorded = {};
try {
  for (const path of [undefined, ...(flags.vocabulary ?? [])]) {
    const vocabulary = vocabularyOf(path);
    for (const pre of flags.pre?.split(',') ?? preTokenizerNames) {
      const file = join(folder, 'vocabulary.gguf');
      writeVocabulary(file, vocabulary, pre);
      const ours = createGgufTokenizer({ model: 'gpt2', pre, ...vocabulary });
      const peer = await PeerValues.open({ folder: flags.peer, model: file, vocabularyOnly: true });
      const candidates = [...texts, ...mixtures(2000)];
      const different = await differencesIn(ours, peer, candidates);
      const codes = flags.all ? await charactersThatDiffer(ours, peer) : [];
      console.log(`${vocabulary.name} ${pre}: ${different.length} of ${candidates.length} texts differ${flags.all ? `, characters ${ranges(codes) || 'none'}` : ''}`);
      for (const text of different.sort((a, b) => a.length - b.length).slice(0, 6)) {
        console.log(`  ${JSON.stringify(text).replace(/[^ -~]/gu, (char) => `\\u{${char.codePointAt(0).toString(16)}}`)}\n    ours ${ours.encode(text, plain)}\n    peer ${await peer.tokens(text)}`);
      }
      if (path === undefined) {
        recorded[pre] = [];
        for (const text of texts) recorded[pre].push((await peer.tokens(text)).join(' '));
      }
      peer.close();
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
if (flags.record !== undefined) {
  // Pre-tokenizers that agree on a text share its line.
  const cases = texts.map((text, at) => {
    const byIds = new Map();
    for (const [pre, lines] of Object.entries(recorded)) byIds.set(lines[at], [...(byIds.get(lines[at]) ?? []), pre]);
    return { text, ids: Object.fromEntries([...byIds].map(([ids, names]) => [names.join(' '), ids])) };
  });
  writeFileSync(flags.record, `[\n${cases.map((item) => JSON.stringify(item)).join(',\n')}\n]\n`);
}
