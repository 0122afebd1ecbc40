// Clusters of real instances for tests: the embedded model on worker threads, and the answers to requests.
import { fileURLToPath } from 'node:url';
import type { LendingRules } from '../../../src/cli/options/lending-rules.ts';
import { blockRoot } from '../../../src/cli/serve/block-root.ts';
import { managerSettings } from '../../../src/cli/serve/live-borrowing.ts';
import type { InstanceSettings, LendingSettings } from '../../../src/cli/serve/worker-settings.ts';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { GenerationEvent, GenerationRequest, InferencePort } from '../../../src/core/protocol/ports.ts';
import type { AdmissionSettings } from '../../../src/core/router/admission/length-admission.ts';
import type { PipelineSettings } from '../../../src/core/router/placement/placer.ts';
import { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import type { BlockRoot } from '../../../src/runtime/threads/thread-protocol.ts';
import { openModel } from '../../../src/weights/open-model.ts';
import { dyingWorker } from '../../bundled-worker.ts';
import { greedy } from '../../core/instance-world.ts';

const model = fileURLToPath(new URL('../../../models/kvasir-tiny/kvasir-tiny-q8_0.gguf', import.meta.url));

export const liveSettings: InstanceSettings = {
  ...{ model, weights: 'native', inputs: 'bf16', threads: 1, contextTokens: 512 },
  ...{ kvBytes: 32 * 2 ** 20, instances: 1, eviction: 'lru', pinShare: 0, warmsUp: false },
};

/** Root of block identities of the model. */
export function liveRoot(): BlockRoot {
  const files = openModel(model);
  try {
    return blockRoot(files, { weights: 'native', inputs: 'bf16' });
  } finally {
    files.close();
  }
}

type LiveInstances = readonly (Partial<InstanceSettings> & { role?: InstanceRole })[];

/** Every request is admitted. */
export const admitAll: AdmissionSettings = { kind: 'none', slo: undefined, decodeUs: 0 };

/** A cluster with prefill times that a test sets. */
export class CalibratedCluster extends LiveCluster {
  /** Observes prefills of the instance with this time for each token. */
  calibrate(instance: number, usPerToken: number): void {
    const request = liveRequest('calibration', livePrompt(1, 1000), 1);
    for (let i = 0; i < 50; i++) {
      this.placement.forwarded(instance, request);
      this.placement.received(0, instance, request.id, { kind: 'started', cachedTokens: 0 });
      this.placement.prefilled(1032 * usPerToken, request.id);
    }
  }
}

export function liveCluster(
  instances: LiveInstances,
  transport: 'memory' | 'shared' | 'tcp' = 'memory',
  admission = admitAll,
  hashKey?: Uint32Array,
  restarts = false,
  pipeline?: PipelineSettings,
): CalibratedCluster {
  return new CalibratedCluster({
    entry: dyingWorker,
    instances: instances.map(({ role = 'mixed', ...own }) => {
      const settings: InstanceSettings = { ...liveSettings, instances: instances.length, ...own };
      return { role, settings };
    }),
    transport,
    admission,
    hashKey,
    queueMax: 64,
    restarts,
    pipeline,
    log: () => {},
  });
}

/** All instances lend and borrow. @param blocks (instances): KV memory of each, in blocks of the embedded model */
export function borrowingCluster(
  blocks: readonly number[],
  changes: Partial<LendingRules> = {},
  own: Partial<InstanceSettings> = {},
  /** (instances): settings of each. */
  each: readonly (Partial<InstanceSettings> & { role?: InstanceRole })[] = [],
  transport: 'memory' | 'shared' | 'tcp' = 'memory',
  restarts = false,
  pipeline?: PipelineSettings,
): LiveCluster {
  const valueBytes = own.inputs === 'f32' ? 4 : 2;
  const kvBytes = blocks.map((count) => count * 32 * 6 * 2 * 2 * 64 * valueBytes);
  const rules = { ...borrowing, ...changes };
  return new LiveCluster({
    entry: dyingWorker,
    instances: blocks.map((_, instance) => {
      const lenders = kvBytes.map((bytes) => ({ kvBytes: bytes, hostBytes: rules.lentHostBytes ?? 0 }));
      const lending: LendingSettings = { lenders, rules };
      const { role = 'mixed', ...its } = each[instance] ?? {};
      const all: InstanceSettings = { ...liveSettings, contextTokens: 8192, instances: blocks.length, ...own };
      return { role, settings: { ...all, ...its, kvBytes: kvBytes[instance], lending } };
    }),
    ...{ transport, restarts, admission: admitAll, pipeline },
    lending: managerSettings(rules),
    queueMax: 64,
    log: () => {},
  });
}

const borrowing: LendingRules = {
  ...{ borrow: true, lendShare: 0.9, lowWater: 0.02, remoteAttentionShare: 0.3, lookAheadMs: 200 },
  ...{ leaseMs: 10_000, borrowAhead: true, settle: true, settleMs: 100, settleMin: 256, remoteCacheMs: 0 },
};

export function liveRequest(id: string, prompt: readonly number[], maxTokens: number): GenerationRequest {
  const sampling = { ...greedy, temperature: 0.8, seed: [prompt[0] ?? 0, 7], topLogprobs: 2 } as const;
  const prompted = { id, prompt: Int32Array.from(prompt), maxTokens, sampling };
  return { ...prompted, stopTokenIds: [], priority: 0, salt: '' };
}

/** A prompt of its own for each `kind`; `length` may differ. */
export function livePrompt(kind: number, length: number): number[] {
  return Array.from({ length }, (_, i) => 3 + ((kind * 97 + i * i * 31 + i * 7) % 500));
}

export interface Answer {
  readonly tokens: readonly number[];
  /** Bits of every log-probability, in order. */
  readonly logprobs: readonly number[];
  readonly end: GenerationEvent;
  readonly cachedTokens: number | undefined;
}

/** Resolves at the last event of the request. */
export function answerOf(cluster: Pick<InferencePort, 'submit'>, request: GenerationRequest): Promise<Answer> {
  return new Promise((resolve) => {
    const tokens: number[] = [];
    const logprobs: number[] = [];
    let cachedTokens: number | undefined;
    cluster.submit(request, (event) => {
      if (event.kind === 'started') cachedTokens = event.cachedTokens;
      if (event.kind === 'prompt-logprobs') logprobs.push(...event.logprobs.logprobs);
      if (event.kind === 'tokens') {
        tokens.push(...event.tokens);
        const { logprobs: chosen, topLogprobs } = event.logprobs ?? { logprobs: [], topLogprobs: [] };
        logprobs.push(...chosen, ...topLogprobs);
      }
      if (event.kind === 'finished' || event.kind === 'failed') resolve({ tokens, logprobs, end: event, cachedTokens });
    });
  });
}

/** Cancels the request after `after` events. Resolves when it is cancelled, or has ended before. */
export function cancelled(
  cluster: Pick<InferencePort, 'submit' | 'cancel'>,
  request: GenerationRequest,
  after: number,
): Promise<void> {
  return new Promise((resolve) => {
    let events = 0;
    const leave = (): void => {
      cluster.cancel(request.id);
      resolve();
    };
    cluster.submit(request, ({ kind }) => {
      if (kind === 'finished' || kind === 'failed') resolve();
      else if (++events === after) leave();
    });
    if (after === 0) leave();
  });
}
