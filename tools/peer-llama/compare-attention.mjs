// Alternates decode attention with ggml's CPU kernels in one run: each type of pages beside each type of the peer's cache,
// and beside the read roof of the same round.
// node tools/peer-llama/compare-attention.mjs --peer DIR [--kv-heads 8] [--group 4] [--head-dim 64] [--contexts 4096,32768]
//   [--mebibytes 512] [--threads 2] [--rounds 5] [--ours bf16,q8] [--theirs f16,q8_0]
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { KernelLab } from '../../dist/bench/kernel/lab.js';
import { median } from '../../dist/bench/statistics.js';
import { kvTokenBytes } from '../../dist/util/kv-type.js';
import { buildPeer } from './build-peer.mjs';

const { values: flags } = parseArgs({
  options: {
    peer: { type: 'string' },
    'kv-heads': { type: 'string', default: '8' },
    group: { type: 'string', default: '4' },
    'head-dim': { type: 'string', default: '64' },
    contexts: { type: 'string', default: '4096,32768' },
    mebibytes: { type: 'string', default: '512' },
    threads: { type: 'string', default: '2' },
    rounds: { type: 'string', default: '5' },
    ours: { type: 'string', default: 'bf16,q8' },
    theirs: { type: 'string', default: 'f16,q8_0' },
  },
});
if (flags.peer === undefined)
  throw new Error('usage: compare-attention.mjs --peer DIR, where npm install node-llama-cpp was run');
const shape = { kvHeads: Number(flags['kv-heads']), group: Number(flags.group), headDim: Number(flags['head-dim']) };
const threads = Number(flags.threads);
const bytesOf = { f16: 2, bf16: 2, q8_0: 34 / 32 };
const repeats = 3;
/** Pause between two contenders: the peer's threads spin after a step and would share the cores. */
const pauseMs = 300;

const { binary, libraries } = buildPeer(flags.peer, 'attention');
const child = spawn(binary, [String(threads), libraries], { stdio: ['pipe', 'pipe', 'inherit'] });
const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
const next = async () => JSON.parse((await lines.next()).value);
const { variant } = await next();
const lab = new KernelLab(threads);

/** As many sequences as make this memory in bf16. */
const sequencesOf = (context) => Math.ceil((Number(flags.mebibytes) * 2 ** 20) / (context * kvTokenBytes(shape, 'bf16')));

function ours(type, context) {
  const sequences = sequencesOf(context);
  const mebibytes = Math.floor((sequences * context * kvTokenBytes(shape, type)) / 2 ** 20);
  const figure = lab.decode(type, shape, context, mebibytes, repeats);
  return { ms: (1000 * figure.seconds) / figure.sequences, bytes: figure.bytes / figure.sequences };
}

async function theirs(type, context) {
  const sequences = sequencesOf(context);
  child.stdin.write(`${[type, shape.kvHeads, shape.group, shape.headDim, context, sequences, repeats].join(' ')}\n`);
  const bytes = context * 2 * shape.kvHeads * shape.headDim * bytesOf[type];
  return { ms: median(await next()) / sequences, bytes };
}

const contenders = [
  ...flags.ours.split(',').map((type) => ({ name: `${lab.isa} ${type}`, time: (context) => ours(type, context) })),
  ...flags.theirs.split(',').map((type) => ({ name: `ggml ${type}`, time: (context) => theirs(type, context) })),
];
console.log(`${threads} threads, ours ${lab.isa}, the peer ${variant}; ms of one layer of one sequence, medians`);
for (const context of flags.contexts.split(',').map(Number)) {
  const times = new Map(contenders.map(({ name }) => [name, []]));
  const roofs = [];
  for (let round = 0; round < Number(flags.rounds); round++) {
    roofs.push(lab.readRoof(1024));
    for (const { name, time } of contenders) {
      times.get(name).push(await time(context));
      await new Promise((resume) => setTimeout(resume, pauseMs));
    }
  }
  const roof = Math.max(...roofs);
  for (const [name, all] of times) {
    const ms = median(all.map((each) => each.ms));
    const least = Math.min(...all.map((each) => each.ms));
    const floor = all[0].bytes / roof / 1e6;
    const cells = [context, name, ms.toFixed(3), least.toFixed(3), floor.toFixed(3), (floor / ms).toFixed(2)];
    console.log(cells.map((cell) => String(cell).padEnd(14)).join(''));
  }
  console.log(`roof ${roof.toFixed(1)} GB/s (median ${median(roofs).toFixed(1)})`);
}
child.stdin.end();
lab.close();
