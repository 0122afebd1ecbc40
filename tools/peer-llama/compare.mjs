// Alternates with llama.cpp, figure by figure in one run, and prints how many times faster each of our forms is.
// node tools/peer-llama/compare.mjs --peer DIR [--peer-cpu haswell] [--shape 135m|1b | --model FILE.gguf] [--type q4_0|q8_0|q4_k]
//   [--threads 2] [--rounds 5] [--inputs int8,i16,bf16] [--json]
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { EngineBench } from '../../dist/bench/engine.js';
import { KernelLab } from '../../dist/bench/kernel/lab.js';
import { median } from '../../dist/bench/statistics.js';
import { createNativeBackend } from '../../dist/kernel/native/native.js';
import { buildPeer, onlyCpu } from './build-peer.mjs';
import { writeRandomGguf } from './random-gguf.mjs';

const figures = [
  { name: 'prefill 512', command: 'prefill', tokens: 512, repeats: 2 },
  { name: 'decode x1', command: 'decode', batch: 1, depth: 0, steps: 24 },
  { name: 'decode x8', command: 'decode', batch: 8, depth: 0, steps: 12 },
  { name: 'decode x32', command: 'decode', batch: 32, depth: 0, steps: 6 },
  { name: 'decode at 512', command: 'decode', batch: 1, depth: 512, steps: 16 },
  { name: 'decode at 4096', command: 'decode', batch: 1, depth: 4096, steps: 8 },
];

/** Target ratios of the project by shape, inputs and, if it matters, instruction set; in the order of `figures`. */
const targets = {
  '135m': { int8Avx2: [1.2, 1, 1, 1, 1, 1], int8: [1.6, 1.3, 2, undefined, 1.7, 3], bf16: [1, undefined, 1, 1, 1, 1], bf16Amx: [3, 0.6, 1.5, 2, undefined, 2] },
  '1b': { int8: [1.5, 1, 1.8, undefined, undefined, undefined] },
};
/** Pause between two contenders: the peer's threads spin for about 100 ms after a step and would share the cores. */
const pauseMs = 400;

class Peer {
  #child;
  #lines;

  constructor({ binary, libraries }, model, threads) {
    this.#child = spawn(binary, [model, String(threads), libraries], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  async next() {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error('Cannot compare: the peer ended');
    return JSON.parse(value);
  }

  request(line) {
    this.#child.stdin.write(`${line}\n`);
    return this.next();
  }

  close() {
    this.#child.stdin.end();
  }
}

function peerCommand({ command, tokens, repeats, batch, depth, steps }, flash) {
  return command === 'prefill' ? `prefill ${flash} ${tokens} ${repeats}` : `decode ${flash} ${batch} ${depth} ${steps}`;
}

function ourTimes(bench, { command, tokens, repeats, batch, depth, steps }) {
  return command === 'prefill' ? bench.prefill(tokens, repeats) : bench.decode(batch, depth, steps);
}

/** Median and minimum of every contender's steps over all rounds. Contenders alternate within a round, with a pause between. */
async function measure(contenders, rounds) {
  const table = figures.map(() => new Map(contenders.map(({ name }) => [name, []])));
  for (let round = 0; round < rounds; round++) {
    for (const [index, figure] of figures.entries()) {
      for (const { name, time } of contenders) {
        table[index].get(name).push(...(await time(figure)));
        await new Promise((resume) => setTimeout(resume, pauseMs));
      }
    }
    console.error(`round ${round + 1} of ${rounds}`);
  }
  return table.map((times) => new Map([...times].map(([name, values]) => [name, { median: median(values), least: Math.min(...values) }])));
}

function targetRatio(inputs, index) {
  const ofShape = targets[flags.shape] ?? {};
  const ofIsa = `${inputs}${backend.isa.charAt(0).toUpperCase()}${backend.isa.slice(1)}`;
  return (ofShape[ofIsa] ?? ofShape[inputs])?.[index];
}

/** The larger of the times that memory at its roof and arithmetic at its peak would take. */
function floorMs(bench, { command, tokens, batch, depth }, roof, peak) {
  const { bytes, operations } = command === 'prefill' ? bench.prefillCost(tokens) : bench.decodeCost(batch, depth);
  return Math.max(bytes / roof / 1e6, operations / peak / 1e6);
}

const { values: flags } = parseArgs({
  options: {
    peer: { type: 'string' },
    'peer-cpu': { type: 'string' },
    model: { type: 'string' },
    shape: { type: 'string', default: '135m' },
    type: { type: 'string', default: 'q4_0' },
    threads: { type: 'string', default: '2' },
    rounds: { type: 'string', default: '5' },
    inputs: { type: 'string', default: 'int8,i16,bf16' },
    json: { type: 'boolean', default: false },
  },
});
if (flags.peer === undefined) throw new Error('usage: compare.mjs --peer DIR, where npm install node-llama-cpp was run');
const threads = Number(flags.threads);
const built = buildPeer(flags.peer);
if (flags['peer-cpu'] !== undefined) built.libraries = onlyCpu(flags.peer, flags['peer-cpu']);
const model = flags.model ?? join(resolve(flags.peer), 'kvasir-peer', `${flags.shape}-${flags.type}.gguf`);
if (!existsSync(model)) writeRandomGguf(model, flags.shape, flags.type);

const lab = new KernelLab(threads);
const limits = () => ({
  roof: lab.readRoof(1024),
  int8: lab.productPeak('int8'),
  bf16: lab.productPeak('bf16'),
  i16: lab.productPeak('i16'),
  f32: lab.productPeak('f32'),
});
const before = limits();
const backend = createNativeBackend({ threads });
const forms = flags.inputs.split(',');
const benches = forms.map((inputs) => new EngineBench(backend, { model, weights: 'native', inputs }));
const peer = new Peer(built, model, threads);
const { variant } = await peer.next();
const contenders = [
  ...forms.map((inputs, index) => ({ name: inputs, time: async (figure) => ourTimes(benches[index], figure) })),
  { name: 'flash', time: (figure) => peer.request(peerCommand(figure, 1)) },
  { name: 'plain', time: (figure) => peer.request(peerCommand(figure, 0)) },
];
const table = await measure(contenders, Number(flags.rounds));
peer.close();
const after = limits();
const best = Object.fromEntries(Object.keys(before).map((name) => [name, Math.max(before[name], after[name])]));
const rows = figures.map((figure, index) => {
  const times = table[index];
  const [flash, plain] = [times.get('flash'), times.get('plain')];
  const peerMs = Math.min(flash.median, plain.median);
  const peerLeastMs = Math.min(flash.least, plain.least);
  return {
    figure: figure.name,
    peerMs,
    peerLeastMs,
    peerFlash: flash.median <= plain.median,
    forms: forms.map((inputs, form) => ({
      inputs,
      ms: times.get(inputs).median,
      leastMs: times.get(inputs).least,
      ratio: peerMs / times.get(inputs).median,
      leastRatio: peerLeastMs / times.get(inputs).least,
      target: targetRatio(inputs, index),
      floorMs: floorMs(benches[form], figure, best.roof, best[inputs]),
    })),
  };
});
const report = { model, threads, isa: backend.isa, variant, rounds: Number(flags.rounds), limits: best, rows };
for (const bench of benches) bench.close();
backend.close();
lab.close();

if (flags.json) {
  console.log(JSON.stringify(report));
} else {
  const fixed = (value, digits = 2) => (value === undefined ? '-' : value.toFixed(digits));
  console.log(`${model}: ${threads} threads, ours ${report.isa}, the peer ${variant}`);
  console.log(`read roof ${fixed(best.roof, 1)} GB/s; peaks int8 ${fixed(best.int8, 0)}, i16 ${fixed(best.i16, 0)}, bf16 ${fixed(best.bf16, 0)} GFLOP/s`);
  const lines = [['figure', 'inputs', 'ours ms', 'least', 'peer ms', 'least', 'flash', 'ratio', 'of least', 'target', 'floor ms']];
  for (const { figure, peerMs, peerLeastMs, peerFlash, forms: ours } of rows) {
    for (const { inputs, ms, leastMs, ratio, leastRatio, target, floorMs: floor } of ours) {
      const peerCells = [fixed(peerMs), fixed(peerLeastMs), peerFlash ? 'on' : 'off'];
      lines.push([figure, inputs, fixed(ms), fixed(leastMs), ...peerCells, fixed(ratio), fixed(leastRatio), fixed(target), fixed(floor)]);
    }
  }
  for (const line of lines) console.log(line.map((cell, column) => cell.padEnd(column === 0 ? 15 : 9)).join(''));
}
