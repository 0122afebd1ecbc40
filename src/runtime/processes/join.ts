// How an instance comes into a cluster: it agrees with those that are there, loads on a thread of its own, and says that it serves.
import { type Agreement, identityOf } from '../../core/membership/agreement.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { Bus } from '../bus/bus.ts';
import { MemoryHub } from '../bus/memory-hub.ts';
import { type Lender, LenderLinks, type LenderLinksOptions } from '../lending/lender-links.ts';
import { type Completion, completion } from '../threads/completion.ts';
import { InstanceThread } from '../threads/instance-thread.ts';
import { ownAddress, subscribeTo } from '../threads/thread-bus.ts';
import type { BlockRoot, InstanceDescription } from '../threads/thread-protocol.ts';
import type { PagesAddress } from '../transfer/messenger.ts';
import { agreeOn, tokenDigest } from './agree.ts';
import { ClusterInstance } from './cluster-instance.ts';

export interface JoinSettings {
  readonly bus: Bus;
  readonly name: string;
  readonly incarnation: number;
  /** Module that the thread runs, and what it is told. */
  readonly entry: URL;
  readonly settings: unknown;
  readonly role: InstanceRole;
  /** A mixed one may be given another role, as those that prefill or decode always may. */
  readonly roleSwitch?: boolean;
  /** Where others reach its pages, and the token that they need; undefined: the cluster's own. */
  readonly pages: Omit<PagesAddress, 'token'> & { readonly token: string | undefined };
  /** What its blocks chain from: the model and the form that it computes in. */
  readonly root: BlockRoot;
  /** Token ids are below. */
  readonly vocabSize: number;
  /** It lends memory to instances of other processes, and borrows theirs; with what their gManager is told if it is here. */
  readonly lending?: LenderLinksOptions['manager'] | undefined;
  readonly log: (message: string) => void;
}

export interface JoinedInstance {
  readonly description: InstanceDescription;
  /** Resolves when its thread has ended, asked to or not, another process has joined under its name, or the cluster is another one: with why it serves no more. */
  readonly ended: Promise<string>;
  /** Says that it goes, so that its requests go elsewhere; ends its thread. The bus stays open. */
  close(): Promise<void>;
}

/** While it loads it is heard, or whoever comes where nobody seems to be would write the record anew. */
const comingMs = 500;

function sayComing(bus: Bus): () => void {
  const say = (): void => bus.publish('beat.coming', new Uint8Array());
  say();
  const timer = setInterval(say, comingMs);
  return () => clearInterval(timer);
}

/** It serves when this resolves. @throws Error in one line when it cannot, or must not */
export async function joinCluster(settings: JoinSettings): Promise<JoinedInstance> {
  const replaced = completion();
  const agreement = await agreed(settings, replaced.end);
  const stop = sayComing(settings.bus);
  try {
    return await join(settings, agreement, replaced);
  } finally {
    stop();
  }
}

function agreed({ bus, root, pages, log }: JoinSettings, onOverruled: (why: string) => void): Promise<Agreement> {
  const tokenMark = pages.token === undefined ? undefined : tokenDigest(pages.token);
  return agreeOn(bus, { modelFingerprint: root.modelFingerprint, root, tokenMark }, { log, onOverruled });
}

async function join(settings: JoinSettings, agreement: Agreement, replaced: Completion): Promise<JoinedInstance> {
  const { root, log, role, pages, roleSwitch = false, lending: manager } = settings;
  const switches = role === 'prefill' || role === 'decode' || (role === 'mixed' && roleSwitch);
  const token = tokenOf(pages, agreement);
  const hub = new MemoryHub();
  const threads = hub.connect();
  const onTaken = (): void => replaced.end('another instance has its number among those that lend');
  const lost = agreement.again === true;
  const lenders = manager && (await LenderLinks.open({ ...settings, threads, manager, lost, onTaken }));
  let instance: ClusterInstance | undefined;
  const thread = new InstanceThread({
    entry: settings.entry,
    ...{ hub, bus: threads },
    data: {
      settings: settings.settings,
      address: ownAddress,
      role,
      incarnation: lenders?.incarnation ?? 1,
      // Prompts of others may come whatever it is now.
      receivesPrompts: switches,
      peers: 'processes',
      pages: { ...pages, token },
      lender: lenders?.instance,
      traces: false,
      hashKey: Uint32Array.from(agreement.hashKey),
      loaded: undefined,
    },
    log,
    onOutputs: (message) => instance?.onOutputs(message),
  });
  subscribeTo(threads, 'peer', ['*', ownAddress], (wire, [to]) => instance?.sendToPeer(Number(to), wire));
  const { description, snapshot } = await thread.ready;
  // What others lend is known as they come.
  const ownTokens = lenders === undefined ? description.capacityTokens : Number.POSITIVE_INFINITY;
  const capacityTokens = Math.min(ownTokens, description.contextTokens);
  const onReplaced = (): void => replaced.end(`another process has joined as ${settings.name}`);
  const joined = new ClusterInstance({
    ...{ ...settings, agreement, capacityTokens, thread, canSwitchRole: switches, onReplaced },
    fetchBytesPerToken: description.fetchBytesPerToken,
    stageLayers: description.stageLayers,
    manages: () => lenders?.isManager,
  });
  instance = joined;
  joined.start(snapshot);
  lenders?.start(lenderOf(description, root, agreement));
  // Its requests are lost with it: nobody has to wait for silence.
  void thread.ended.then(() => Promise.all([joined.close(), lenders?.close()]));
  const close = async (): Promise<void> => {
    const left = joined.close();
    await thread.close();
    await Promise.all([left, lenders?.close()]);
    await threads.close();
  };
  const ended = Promise.race([replaced.ended, thread.ended.then(() => 'the instance ended; the lines above say why')]);
  return { description, ended, close };
}

function tokenOf({ token }: JoinSettings['pages'], agreement: Agreement): string {
  const agreed = token ?? agreement.pages?.token;
  if (agreed === undefined) throw new Error('Cannot join the cluster: its record names no token for pages');
  return agreed;
}

/** Blocks of equal identity are computed over with the same bits by the same kernels. */
function lenderOf({ lends, isa }: InstanceDescription, root: BlockRoot, { hashKey }: Agreement): Lender {
  if (lends?.attentionAddress === undefined) throw new Error('Cannot lend: the instance has not said what, and where');
  return {
    identity: `${identityOf(root, hashKey)} ${isa}`,
    lendableBlocks: lends.blocks,
    attentionAddress: lends.attentionAddress,
  };
}
