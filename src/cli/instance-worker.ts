// Entry of an instance's thread: kernels, weights, engine, machine, loop.
import { webcrypto } from 'node:crypto';
import { platform, setPriority } from 'node:os';
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { createTokenInstance, type TokenInstance } from '../cluster/token-work.ts';
import { Engine } from '../engine/engine.ts';
import { modelFingerprint } from '../engine/fingerprint.ts';
import { loadModel } from '../engine/load-model.ts';
import type { Backend } from '../kernel/backend.ts';
import { collectWhenAsked } from '../live/collection.ts';
import { InstanceLoop } from '../live/instance-loop.ts';
import type { FromInstance, InstanceDescription, InstanceThreadData } from '../live/protocol.ts';
import { openModel } from '../weights/open-model.ts';
import { createBackend } from './backend.ts';
import { defaultKvBytes } from './kv-memory.ts';
import type { InstanceSettings } from './worker-settings.ts';

/** Rows of a step: more gains nothing, because kernels work in tiles of far fewer. */
const tokensMax = 1024;
const sequencesMax = 128;
/** Some above the running sequences, for rows that score prompts. */
const logitRowsMax = sequencesMax + 64;
/** Predicted time of a step: where others decode, prefill must not hold up their tokens. */
const stepUsDecoding = 50_000;
const stepUsPrefill = 100_000;
const computeNiceness = 5;

interface Loaded {
  readonly machine: TokenInstance;
  readonly engine: Engine;
  readonly description: InstanceDescription;
}

function load(settings: InstanceSettings, backend: Backend): Loaded {
  const files = openModel(settings.model);
  try {
    const { weights, inputs, contextTokens } = settings;
    const model = loadModel({ model: files, backend, weights, inputs, context: contextTokens });
    const kvBytes = settings.kvBytes ?? defaultKvBytes(model.kv, contextTokens);
    const engine = new Engine({ model, backend, tokensMax, logitRowsMax, kvBytes });
    const machine = createTokenInstance({
      pages: engine.pages,
      groups: model.kv.groups,
      eviction: settings.eviction,
      limits: { tokensMax, logitRowsMax, sequencesMax, stepUsDecoding, stepUsPrefill },
      // The conductor on the gateway's thread is the one that refuses.
      queueMax: Number.MAX_SAFE_INTEGER,
      root: {
        modelFingerprint: modelFingerprint(files),
        weightForm: weights,
        inputForm: inputs,
        kvType: model.kv.type,
        rope: JSON.stringify([model.config.positions, model.config.attention]),
      },
      // Blocks never leave this process, so nobody has to know the key: identities cannot be forged from outside.
      hashKey: webcrypto.getRandomValues(new Uint32Array(4)),
    });
    const description = {
      weights: `${weights} (${model.packedTypes.join(', ')})`,
      // A layer whose weights are not quantised takes bf16 where int8 was asked for.
      inputs: [...new Set(model.compiled.linears.map((linear) => linear.inputs))].join(', '),
      isa: backend.isa,
      threads: backend.threads,
      weightBytes: model.weightsBytes,
      kvBytes: engine.pages * model.kv.pageBytes,
      contextTokens,
      capacityTokens: machine.capacityTokens,
    };
    return { machine, engine, description };
  } finally {
    files.close();
  }
}

/** On Linux this is the calling thread's own, and its compute threads inherit it: the gateway's thread goes first where cores are short. */
function yieldToGateway(): void {
  if (platform() === 'linux') setPriority(computeNiceness);
}

function serve(port: MessagePort): void {
  const post = (message: FromInstance): void => port.postMessage(message);
  const { settings, abort } = workerData as InstanceThreadData<InstanceSettings>;
  try {
    yieldToGateway();
    const { machine, engine, description } = load(settings, createBackend(settings.threads));
    new InstanceLoop(machine, engine, port, new Int32Array(abort), console.error).start();
    collectWhenAsked();
    post({ kind: 'ready', description, snapshot: machine.snapshot() });
  } catch (error) {
    post({ kind: 'unable', message: error instanceof Error ? error.message : String(error) });
  }
}

if (parentPort === null) throw new Error('Cannot run an instance: this module is the entry of a worker thread');
serve(parentPort);
