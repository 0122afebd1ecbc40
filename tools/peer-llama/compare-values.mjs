// Compares our logits with llama.cpp's on the same GGUF files, written from checkpoints, and both with recorded ones.
// node tools/peer-llama/compare-values.mjs --peer DIR FOLDER... (each with config.json, model.safetensors, golden.json)
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { parseArgs } from 'node:util';
import { Engine } from '../../dist/engine/engine.js';
import { freeModel, loadModel } from '../../dist/engine/load-model.js';
import { groupedStep, plainPages } from '../../dist/engine/plain-step.js';
import { createNativeBackend } from '../../dist/kernel/native/native.js';
import { ReferenceBackend } from '../../dist/kernel/reference/reference.js';
import { pageTokens } from '../../dist/util/step.js';
import { convert } from '../write-gguf/convert.mjs';
import { PeerValues } from './peer-values.mjs';

const tokensMax = 512;
const contextMax = 1024;

function openEngine(model, oracle) {
  const backend = oracle ? new ReferenceBackend() : createNativeBackend({ threads: 1 });
  const loaded = loadModel({ model, backend, weights: 'f32', inputs: 'f32', context: contextMax });
  const engine = new Engine({ model: loaded, backend, tokensMax, logitRowsMax: 1, kvBytes: 2 ** 26 });
  const close = () => {
    engine.close();
    freeModel(loaded, backend);
    backend.close();
  };
  return { engine, close };
}

/** (vocabulary) logits behind these tokens, which stand at `start` and after. */
function ourLogits(engine, tokens, start) {
  const blocks = Array.from({ length: contextMax / pageTokens }, (_, id) => id);
  const sequence = { tokens, start, blocks: blocks.slice(0, Math.ceil((start + tokens.length) / pageTokens)), logits: 'last' };
  const step = groupedStep([sequence], plainPages(blocks.length, engine.model.kv.groups));
  const outcome = engine.run(step, new Int32Array(1));
  if (outcome.kind !== 'done') throw new Error('Cannot compare: a step was aborted');
  return Float32Array.from(engine.readLogits(outcome.result.tokens.length));
}

function logProbabilities(logits) {
  const most = logits.reduce((largest, value) => Math.max(largest, value), -Infinity);
  const logSum = most + Math.log(logits.reduce((sum, value) => sum + Math.exp(value - most), 0));
  return Float64Array.from(logits, (value) => value - logSum);
}

const best = (values) => values.reduce((at, value, index) => (value > values[at] ? index : at), 0);

/** Worst distances of log-probabilities over all steps of a case; between the engines, over the whole vocabulary. */
async function compareCase(engine, peer, { prompt, greedy, steps }) {
  const worst = { oursPeer: 0, oursGolden: 0, peerGolden: 0, tokens: 0, steps: 0 };
  for (const [at, token] of greedy.entries()) {
    // Our engine continues from its KV pages; the peer computes all tokens anew at each step.
    const ours = logProbabilities(at === 0 ? ourLogits(engine, prompt, 0) : ourLogits(engine, [greedy[at - 1]], prompt.length + at - 1));
    const theirs = logProbabilities(await peer.logits([...prompt, ...greedy.slice(0, at)]));
    const raise = (key, value) => {
      worst[key] = Math.max(worst[key], value);
    };
    for (const [id, value] of ours.entries()) raise('oursPeer', Math.abs(value - theirs[id]));
    for (const [rank, id] of (steps[at]?.ids ?? []).entries()) {
      raise('oursGolden', Math.abs(ours[id] - steps[at].logprobs[rank]));
      raise('peerGolden', Math.abs(theirs[id] - steps[at].logprobs[rank]));
    }
    worst.steps++;
    if (best(ours) === token && best(theirs) === token) worst.tokens++;
  }
  return worst;
}

function report(name, { oursPeer, oursGolden, peerGolden, tokens, steps }) {
  const distances = [oursPeer, oursGolden, peerGolden].map((value) => value.toExponential(1));
  console.log(`| ${[name, ...distances, `${tokens} of ${steps}`].join(' | ')} |`);
}

const { values: flags, positionals: folders } = parseArgs({
  allowPositionals: true,
  options: { peer: { type: 'string' }, oracle: { type: 'boolean', default: false } },
});
if (flags.peer === undefined || folders.length === 0) throw new Error('usage: compare-values.mjs --peer DIR [--oracle] FOLDER...');
console.log('| model, tokens of the prompt | ours from the peer | ours from the recorded | the peer from the recorded | tokens the same in all |');
const work = mkdtempSync(join(tmpdir(), 'kvasir-values-'));
try {
  for (const folder of folders) {
    const model = join(work, `${basename(folder)}.gguf`);
    convert(folder, model);
    const { engine, close } = openEngine(model, flags.oracle);
    const peer = await PeerValues.open({ folder: flags.peer, model });
    const { cases } = JSON.parse(readFileSync(join(folder, 'golden.json'), 'utf8'));
    for (const golden of cases) report(`${basename(folder)}, ${golden.prompt.length}`, await compareCase(engine, peer, golden));
    peer.close();
    close();
  }
} finally {
  rmSync(work, { recursive: true, force: true });
}
