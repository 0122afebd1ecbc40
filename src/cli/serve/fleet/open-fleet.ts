// Opens the gateway of a fleet: the text side of the model here, and a conductor over external engines.
import type { PublishedBlocks } from '../../../core/fleet/published-blocks.ts';
import type { ServedModel } from '../../../gateway/http/served-model.ts';
import { FleetCluster } from '../../../runtime/fleet/fleet-cluster.ts';
import { PodEngines } from '../../../runtime/fleet/kubernetes/pod-engines.ts';
import { kvTokenBytes } from '../../../util/kv-type.ts';
import { ModelFileError } from '../../../weights/errors.ts';
import { openModel } from '../../../weights/open-model.ts';
import type { ModelFiles } from '../../../weights/types.ts';
import type { ServeOptions } from '../../options/options.ts';
import { admissionSettings } from '../../options/slo-options.ts';
import { UsageError } from '../../usage-error.ts';
import { locateModel } from '../model/locate-model.ts';
import { openTextSide, type TextSide } from '../model/text-side.ts';
import { openEngineText } from './engine-text-side.ts';
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
  const { model: modelName, engines, pods, gateways } = readFleetFile(path);
  const selected = pods.map(({ api, namespace, ...own }) => ({ ...own, ...kubernetesApi(api, namespace) }));
  const located = options.model === undefined ? undefined : await locateModel(options.model);
  const files = located && openModel(located.path, false);
  let closeAll = async (): Promise<void> => {};
  try {
    const cluster = new FleetCluster({
      ...{ engines, model: modelName, gateways, kvEvents, traces, log, grows: pods.length > 0 },
      queueMax: options.queue,
      admission: admissionSettings(options),
      stepUs: options.stepMs && 1000 * options.stepMs,
      requestTimeoutUs: options.requestTimeout && options.requestTimeout * 1e6,
    });
    const podEngines = selected.map((each) => new PodEngines(each, cluster, log));
    closeAll = async () => {
      for (const each of podEngines) each.close();
      await cluster.close();
    };
    await Promise.all([cluster.settled(), ...podEngines.map((each) => each.settled())]);
    const context = options.context ?? cluster.contextTokens;
    const text =
      files && openOwnText(files, located.path, context, options.servedModelName ?? cluster.model ?? located.name, log);
    if (files !== undefined && text !== undefined) {
      const close = async (): Promise<void> => {
        await Promise.all([closeAll(), text.close()]);
      };
      return { ...text, model: { ...text.model, ...sizesOf(files) }, cluster, close };
    }
    if (options.record !== undefined && files === undefined)
      throw new UsageError('Cannot use --record: it states the sizes of the model: add --model');
    if (options.chatTemplate !== undefined)
      throw new UsageError('Cannot use --chat-template: engines render chats, since the model has no tokenizer here');
    const engineText = await openEngineText(cluster, context ?? files?.config.maxPositions, options.servedModelName);
    const model = { ...engineText.model, ...(files && sizesOf(files)) };
    return { ...engineText, model, cluster, close: closeAll };
  } catch (error) {
    // Connections would keep the process alive.
    await closeAll();
    throw error;
  } finally {
    files?.close();
  }
}

/** Undefined: the files have no tokenizer, or one that cannot be used here. */
function openOwnText(
  files: ModelFiles,
  path: string,
  context: number | undefined,
  name: string | undefined,
  log: (message: string) => void,
): TextSide | undefined {
  const engines = 'the engines tokenize, render chats and decode';
  try {
    const text = openTextSide(files, path, context ?? files.config.maxPositions, name, 'generation');
    if (text.model.tokenizer !== undefined) return text;
    void text.close();
    log(`Model ${path} has no tokenizer: ${engines}`);
  } catch (error) {
    if (!(error instanceof ModelFileError)) throw error;
    log(`${error.message}: ${engines}`);
  }
  return undefined;
}

/** Engines do not state the type of their keys and values: 16 bits are assumed. */
function sizesOf({ config }: ModelFiles): Pick<ServedModel, 'kvTokenBytes' | 'shape'> {
  const { layers, heads, headDim } = config;
  return { kvTokenBytes: layers * kvTokenBytes(config, 'bf16'), shape: { layers, heads, headDim } };
}
