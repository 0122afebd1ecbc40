// `kvasir serve --record`: the file of a recording, its header, and the port whose requests it records.

import { webcrypto } from 'node:crypto';
import { rm } from 'node:fs/promises';
import type { ClusterPort, InferencePort } from '../../../core/protocol/ports.ts';
import { balancingThresholdDefault } from '../../../core/router/placement/placement.ts';
import type { ServedModel } from '../../../gateway/http/served-model.ts';
import { nowUs } from '../../../runtime/threads/alarm.ts';
import type { StepSource } from '../../../runtime/threads/conductor-driver.ts';
import { recordingLine, recordingVersion } from '../../../trace/recording/recording.ts';
import { pageTokens } from '../../../util/step.ts';
import { type ServeOptions, toFlag } from '../../options/options.ts';
import { boundText } from '../../options/slo-options.ts';
import { killInsteadOfExit } from '../stop-signal.ts';
import { AppendFile } from './append-file.ts';
import { RequestRecording } from './request-recording.ts';

export interface OpenRecording {
  /** The port through which requests are recorded. */
  readonly port: InferencePort;
  /** Takes a few seconds at most; if a write hangs, the process is killed at its exit. */
  close(): Promise<void>;
  /** The server has not started: closes and removes the file. */
  discard(): Promise<void>;
}

const none = async (): Promise<void> => {};

const observeMs = 1000;
/** Time for the rest of the server to end. */
const hungExitMs = 10_000;

/** Records nothing without a path. @throws UsageError if the file exists or cannot be created */
export async function openRecording(
  { record: path, ...options }: ServeOptions,
  { model, cluster }: { readonly model: ServedModel; readonly cluster: InferencePort & ClusterPort & StepSource },
  log: (message: string) => void,
): Promise<OpenRecording> {
  const { shape, kvTokenBytes, id } = model;
  if (path === undefined || shape === undefined || kvTokenBytes === undefined)
    return { port: cluster, close: none, discard: none };
  const file = await AppendFile.create(path, {
    onFailed: ({ code, message }) =>
      log(`Recording stopped: ${path} cannot be written (${code ?? message}); requests are served without it`),
    omittedLine: (omitted) => recordingLine({ omitted }),
  });
  file.add(
    recordingLine({
      ...{ recording: recordingVersion, timeUnit: 'ms', started: new Date().toISOString(), model: id },
      ...{ blockTokens: pageTokens, kvTokenBytes, ...shape, settings: recordedSettings(options) },
    }),
  );
  const recording = new RequestRecording({
    ...{ cluster, key: webcrypto.getRandomValues(new Uint32Array(4)), nowUs },
    epochUs: () => Math.round((performance.timeOrigin + performance.now()) * 1000),
    onSteps: (steps) => file.add(recordingLine({ steps })),
    onReports: (reports) => file.add(recordingLine({ reports })),
    onRequest: (line) => file.add(recordingLine(line)),
    onInstances: (atMs, instances) => file.add(recordingLine({ atMs, instances })),
  });
  const timer = setInterval(() => {
    recording.observeInstances();
    recording.flushSteps();
  }, observeMs);
  timer.unref();
  const close = async (): Promise<void> => {
    clearInterval(timer);
    recording.close();
    if (!(await file.close())) killInsteadOfExit(hungExitMs);
  };
  const discard = async (): Promise<void> => {
    await close();
    await rm(path, { force: true });
  };
  return { port: recording.port, close, discard };
}

/** The options that the simulator has too, in the notation of its flags. */
function recordedSettings(options: Omit<ServeOptions, 'record'>): Readonly<Record<string, unknown>> {
  const { ttftSlo, tbtSlo, sloClasses, admission, forecast, td, refusalProbabilityMax, inlineTokens } = options;
  const { roleSwitch, roleDwell, queue, stepMs, eviction, pinMemory, copyHotPrefixes } = options;
  const { borrow, lendShare, lowWater, remoteAttentionShare, lookAheadMs, leaseMs, borrowAhead } = options;
  const { settle, settleMs, settleMin, remoteCacheMs, lendHost, remoteAttention } = options;
  const others = (['cppGroup', 'sparse', 'dop'] as const).filter((name) => options[name] !== undefined).map(toFlag);
  const classes = Object.entries(sloClasses ?? {}).map(([name, { priority, ...bounds }]) => {
    const texts = Object.entries(bounds).map(([kind, bound]) => [kind, boundText(bound)] as const);
    return [name, { ...Object.fromEntries(texts), priority }] as const;
  });
  return {
    ...{
      processes: options.nats !== undefined,
      queue,
      stepMs,
      eviction,
      pinMemory,
      balancingThreshold: balancingThresholdDefault,
      copyHotPrefixes,
    },
    ...{ admission, forecast, td, refusalProbabilityMax, inlineTokens, roleSwitch, roleDwell },
    ...{ ttftSlo: ttftSlo && boundText(ttftSlo), tbtSlo: tbtSlo && boundText(tbtSlo) },
    ...(classes.length > 0 && { sloClasses: Object.fromEntries(classes) }),
    ...(others.length > 0 && { others }),
    ...(borrow && {
      ...{ borrow, lendShare, lowWater, remoteAttentionShare, lookAheadMs, leaseMs, borrowAhead },
      ...{ settle, settleMs, settleMin, remoteCacheMs, lendHost, remoteAttention },
    }),
  };
}
