// How an instance comes into a cluster: it agrees with those that are there, loads on a thread of its own, and says that it serves.
import type { InstanceRole } from '../cluster/conductor.ts';
import { agreeOn, markOf } from './agree.ts';
import type { Bus } from './bus/bus.ts';
import { ClusterInstance } from './cluster-instance.ts';
import { InstanceThread } from './instance-thread.ts';
import type { BlockRoot, InstanceDescription } from './protocol.ts';

export interface JoinSettings {
  readonly bus: Bus;
  readonly name: string;
  readonly life: number;
  /** Module that the thread runs, and what it is told. */
  readonly entry: URL;
  readonly settings: unknown;
  readonly role: InstanceRole;
  /** Where others reach its pages, and the token that they need; undefined: the cluster's own. */
  readonly pages: { readonly host: string; readonly port: number; readonly token: string | undefined };
  /** What its blocks chain from: the model and the form that it computes in. */
  readonly root: BlockRoot;
  /** Token ids are below. */
  readonly vocabSize: number;
  readonly log: (message: string) => void;
}

export interface JoinedInstance {
  readonly description: InstanceDescription;
  /** Resolves when its thread has ended, asked to or not, or another process has joined under its name: with why it serves no more. */
  readonly ended: Promise<string>;
  /** Says that it goes, so that its requests go elsewhere; ends its thread. The bus stays open. */
  close(): Promise<void>;
}

/** It serves when this resolves. @throws Error in one line when it cannot, or must not */
export async function joinCluster(settings: JoinSettings): Promise<JoinedInstance> {
  const { bus, root, log, role, pages } = settings;
  const tokenMark = pages.token === undefined ? undefined : markOf(pages.token);
  const agreement = await agreeOn(bus, { modelFingerprint: root.modelFingerprint, root, tokenMark });
  const token = pages.token ?? agreement.pages?.token;
  if (token === undefined) throw new Error('Cannot join the cluster: its record names no token for pages');
  let instance: ClusterInstance | undefined;
  const thread = new InstanceThread({
    entry: settings.entry,
    data: {
      settings: settings.settings,
      role,
      life: 1,
      lands: role === 'decode',
      peers: role === 'mixed' ? [] : 'others',
      tcp: role === 'mixed' ? undefined : { host: pages.host, port: pages.port, token },
      traces: false,
      hashKey: Uint32Array.from(agreement.hashKey),
      loaded: undefined,
    },
    log,
    onEvents: (message) => instance?.hear(message),
    onToPeer: (message) => instance?.hearToPeer(message),
  });
  const { description, snapshot } = await thread.ready;
  const capacityTokens = Math.min(description.capacityTokens, description.contextTokens);
  let replace: (why: string) => void = () => {};
  const replaced = new Promise<string>((resolve) => {
    replace = resolve;
  });
  const onReplaced = (): void => replace(`another process has joined as ${settings.name}`);
  const joined = new ClusterInstance({ ...settings, agreement, capacityTokens, thread, onReplaced });
  instance = joined;
  joined.start(snapshot);
  // Its requests are lost with it: nobody has to wait for silence.
  void thread.ended.then(() => joined.close());
  const close = async (): Promise<void> => {
    joined.close();
    await thread.close();
  };
  const ended = Promise.race([replaced, thread.ended.then(() => 'the instance ended; the lines above say why')]);
  return { description, ended, close };
}
