// A load on `kvasir serve --nats` with instances as processes, recorded by the gateway.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { sendLoad } from '../../../bench/fidelity/send-load.ts';
import { firstModel } from '../../../bench/http/client.ts';
import type { TraceRequest } from '../../../trace/request.ts';
import { pageTokens } from '../../../util/step.ts';
import { packageFile } from '../../package-root.ts';
import { temporaryFolder } from '../../serve/exit-cleanup.ts';
import { killAtExit, killChild, LocalNats } from './local-nats.ts';
import { addressOf, serveCommand } from './process-cluster.ts';

/** All requests have ended when the server is stopped. */
const stopMs = 60_000;

/** Two instances each: mixed ones, prefill and decode, with host memory, and with borrowed memory. */
export const recordedKinds = ['mixed', 'pd', 'tiers', 'borrow'] as const;
export type RecordedKind = (typeof recordedKinds)[number];

export interface RecordedLoad {
  readonly kind: RecordedKind;
  /** Undefined: the embedded model. */
  readonly model: string | undefined;
  /** Options of weights, inputs, keys and values, by the names of their flags. */
  readonly forms: Readonly<Record<string, string | undefined>>;
  /** Per instance. */
  readonly threads: number;
  /** Keys and values of one block. */
  readonly blockBytes: number;
  readonly contextTokens: number;
  readonly requests: readonly TraceRequest[];
}

/** A request of the longest kind fits alone; with borrowing, two instances hold it together. */
function optionsOf({
  kind,
  threads,
  blockBytes,
  contextTokens,
  forms,
}: RecordedLoad): Readonly<Record<string, unknown>> {
  const contextBlocks = Math.ceil(contextTokens / pageTokens) + 1;
  const roles = kind === 'pd' ? ['prefill', 'decode'] : ['mixed', 'mixed'];
  const instances = roles.map((role) => ({ role, threads }));
  const common = { ...forms, instances, context: contextTokens };
  if (kind === 'tiers')
    return { ...common, 'kv-memory': 2 * contextBlocks * blockBytes, 'host-memory': 16 * contextBlocks * blockBytes };
  if (kind !== 'borrow') return common;
  return { ...common, 'kv-memory': Math.ceil(0.8 * contextBlocks) * blockBytes, borrow: true, 'lend-share': 0.9 };
}

/**
 * Serves the load and calls `use` with the path of the recording, which is removed afterwards.
 * @throws UsageError if nats-server is not installed, Error if the cluster does not start or answers are missing
 */
export async function withRecording<T>(load: RecordedLoad, use: (path: string) => Promise<T>): Promise<T> {
  const nats = await LocalNats.start();
  const folder = temporaryFolder('fidelity');
  const config = join(folder.path, 'cluster.json');
  const path = join(folder.path, 'recording.jsonl');
  // JSON is YAML.
  writeFileSync(config, JSON.stringify(optionsOf(load)));
  const model = load.model === undefined ? [] : ['--model', load.model];
  const flags = [...serveCommand, ...model, '--nats', nats.url, '--config', config, '--record', path];
  const server = killAtExit(
    spawn(process.execPath, [packageFile('bundle/cli/main.js'), ...flags], { stdio: ['ignore', 'pipe', 'inherit'] }),
  );
  try {
    const url = await addressOf(server, 'start the cluster');
    const endpoint = { url, apiKey: undefined, now: () => performance.now() };
    const complete = await sendLoad({ ...endpoint, model: await firstModel(endpoint) }, load.requests);
    await stop(server);
    if (complete < load.requests.length)
      throw new Error(`Cannot compare: ${load.requests.length - complete} of ${load.requests.length} requests failed`);
    return await use(path);
  } finally {
    await killChild(server);
    await nats.close();
    folder.remove();
  }
}

/** Lets the server finish its recording; it may have ended before. @throws Error if it does not end in time */
async function stop(server: ChildProcess): Promise<void> {
  if (server.exitCode !== null || server.signalCode !== null) return;
  const ended = once(server, 'exit', { signal: AbortSignal.timeout(stopMs) }).catch(() => {
    throw new Error(`Cannot finish the recording: the server has not ended ${stopMs / 1000} s after SIGTERM`);
  });
  server.kill('SIGTERM');
  await ended;
}
