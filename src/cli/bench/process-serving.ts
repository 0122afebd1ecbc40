// A cluster for benches: the gateway is this process, and instances are child processes on a NATS server of their own.
import { setTimeout as sleep } from 'node:timers/promises';
import type { ClusterGateway } from '../../runtime/processes/cluster-gateway.ts';
import { type InstanceOptions, type ServeOptions, serveOptionsSchema } from '../options/options.ts';
import { ChildInstances } from '../serve/child-instances.ts';
import type { TextSide } from '../serve/model/text-side.ts';
import { openClusterGateway } from '../serve/open-cluster.ts';
import type { LocalNats } from './local-nats.ts';

export interface ProcessServing extends Pick<TextSide, 'model'> {
  readonly cluster: ClusterGateway;
  close(): Promise<void>;
}

type Given = Partial<Omit<ServeOptions, 'nats' | 'cluster' | 'instances'>>;

/** Resolves when all instances serve. @param name of the cluster; several may share the server @throws Error if an instance fails */
export async function openProcesses(
  { url }: Pick<LocalNats, 'url'>,
  name: string,
  given: Given,
  instances: readonly InstanceOptions[],
): Promise<ProcessServing> {
  const quiet = { log: () => {}, traces: false };
  const asked = { ...given, nats: url, cluster: name, instances, logLevel: 'error' };
  const options = serveOptionsSchema.parse(asked);
  const children = new ChildInstances(url, options, instances, { log: quiet.log, died: () => {} });
  const gateway = await openClusterGateway(url, options, quiet);
  const close = async (): Promise<void> => {
    await Promise.all([gateway.close(), children.close()]);
  };
  try {
    await children.joined();
    while (gateway.cluster.instances().filter(({ ready }) => ready).length < instances.length) await sleep(10);
    return { model: gateway.model, cluster: gateway.cluster, close };
  } catch (error) {
    await close();
    throw error;
  }
}
