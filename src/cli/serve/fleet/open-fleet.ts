// Opens the gateway of a fleet: the text side of the model here, and a conductor over external engines.
import type { PublishedBlocks } from '../../../core/fleet/published-blocks.ts';
import { FleetCluster } from '../../../runtime/fleet/fleet-cluster.ts';
import { PodEngines } from '../../../runtime/fleet/kubernetes/pod-engines.ts';
import { kvTokenBytes } from '../../../util/kv-type.ts';
import { openModel } from '../../../weights/open-model.ts';
import type { ServeOptions } from '../../options/options.ts';
import { admissionSettings } from '../../options/slo-options.ts';
import { UsageError } from '../../usage-error.ts';
import { locateModel } from '../model/locate-model.ts';
import { openTextOrClose, openTextSide, type TextSide } from '../model/text-side.ts';
import { readFleetFile } from './fleet-file.ts';
import { kubernetesApi } from './kubernetes-api.ts';

export interface FleetMember extends TextSide {
  readonly cluster: FleetCluster;
}

export interface FleetSettings {
  /** Receives the blocks of the engines, to publish them. */
  readonly kvEvents: PublishedBlocks | undefined;
  /** Steps are recorded. */
  readonly traces: boolean;
  log(message: string): void;
}

/** @throws UsageError if the fleet file or the model is unusable */
export async function openFleet(
  path: string,
  options: ServeOptions,
  { kvEvents, traces, log }: FleetSettings,
): Promise<FleetMember> {
  const { model, engines, pods, gateways } = readFleetFile(path);
  const selected = pods.map(({ api, namespace, ...own }) => ({ ...own, ...kubernetesApi(api, namespace) }));
  if (options.model === undefined)
    throw new UsageError('Cannot use --fleet: it needs the tokenizer of its model: add --model');
  const located = await locateModel(options.model);
  const files = openModel(located.path, false);
  try {
    const cluster = new FleetCluster({
      ...{ engines, model, gateways, kvEvents, traces, log, grows: pods.length > 0 },
      queueMax: options.queue,
      admission: admissionSettings(options),
      stepUs: options.stepMs && 1000 * options.stepMs,
      requestTimeoutUs: options.requestTimeout && options.requestTimeout * 1e6,
    });
    const podEngines = selected.map((each) => new PodEngines(each, cluster, log));
    await Promise.all([cluster.settled(), ...podEngines.map((each) => each.settled())]);
    const context = options.context ?? cluster.contextTokens ?? files.config.maxPositions;
    const name = options.servedModelName ?? cluster.model ?? located.name;
    const closeEngines = async (): Promise<void> => {
      for (const each of podEngines) each.close();
      await cluster.close();
    };
    const opened = { close: closeEngines };
    const text = await openTextOrClose(opened, () => openTextSide(files, located.path, context, name, 'generation'));
    const close = async (): Promise<void> => {
      await Promise.all([closeEngines(), text.close()]);
    };
    // Engines do not state the type of their keys and values: 16 bits are assumed.
    const { layers, heads, headDim } = files.config;
    const sizes = { kvTokenBytes: layers * kvTokenBytes(files.config, 'bf16'), shape: { layers, heads, headDim } };
    return { ...text, model: { ...text.model, ...sizes }, cluster, close };
  } finally {
    files.close();
  }
}
