// Joins an instance to a cluster: agrees with the running processes, loads the model on a thread, and announces the instance.
import { type Agreement, identityOf } from '../../core/membership/agreement.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import type { Bus } from '../bus/bus.ts';
import { MemoryHub } from '../bus/memory-hub.ts';
import { type Lender, LenderLinks, type LenderLinksOptions } from '../lending/lender-links.ts';
import { Completion } from '../threads/completion.ts';
import { InstanceThread } from '../threads/instance-thread.ts';
import { ownAddress, subscribeTo } from '../threads/thread-bus.ts';
import type { BlockRoot, InstanceDescription } from '../threads/thread-protocol.ts';
import type { PagesAddress } from '../transfer/messenger.ts';
import { agreeOn, tokenDigest } from './agree.ts';
import { ClusterInstance } from './cluster-instance.ts';
import type { ClusterProcess } from './peer-session.ts';

export interface JoinSettings extends ClusterProcess {
  /** Module of the thread, and its settings for the agreed root. */
  readonly entry: URL;
  readonly settings: (root: BlockRoot) => unknown;
  readonly role: InstanceRole;
  /** A mixed instance may switch its role; prefill and decode instances always may. */
  readonly roleSwitch?: boolean;
  /** The role never changes: the pages lie at attention workers, and no prompt can be sent from there. */
  readonly keepsRole?: boolean;
  /** Address of its pages, and the token that senders need; an undefined token is the cluster's own. */
  readonly pages: Omit<PagesAddress, 'token'> & { readonly token: string | undefined };
  /** Root of block identities: the model, and the form that it computes in. */
  readonly root: BlockRoot;
  /** The root with the input form of the cluster, if that replaces the one of `root`. */
  readonly rootIn?: ((inputForm: string) => BlockRoot) | undefined;
  /** Hash key of the blocks that it keeps on SSD, offered to a cluster without a record. */
  readonly hashKey?: readonly number[] | undefined;
  /** Token ids are less than this. */
  readonly vocabSize: number;
  /** @see InstanceThreadOptions.watchdogUs */
  readonly watchdogUs?: number | undefined;
  /** Settings of the gManager if this process runs it; undefined: no memory is lent or borrowed. */
  readonly lending?: LenderLinksOptions['manager'] | undefined;
}

export interface JoinedInstance {
  readonly description: InstanceDescription;
  /** The cluster's hash key of blocks. */
  readonly hashKey: readonly number[];
  /** Resolves with the reason when the instance stops serving: its thread has ended, it was replaced, or the cluster has another agreement. */
  readonly ended: Promise<string>;
  /** True while its compute thread hangs: the process cannot exit by itself. */
  readonly isHung: () => boolean;
  /** Accepts no further requests; resolves when those that run have ended, or after the time. Returns whether they have ended. */
  drain(timeoutMs: number): Promise<boolean>;
  readonly snapshot: () => InstanceSnapshot;
  readonly role: () => InstanceRole;
  /** Why gateways cannot use the instance; undefined: they can. */
  readonly notReadyReason: () => string | undefined;
  /** Announces the departure, so that gateways retry its requests elsewhere, and ends the thread. The bus stays open. */
  close(): Promise<void>;
}

/** Heartbeats while the model loads: without them, another joining process would write a new agreement. */
const loadingHeartbeatMs = 500;

export function announceLoading(bus: Bus): () => void {
  const announce = (): void => bus.publish('beat.coming', new Uint8Array());
  announce();
  const timer = setInterval(announce, loadingHeartbeatMs);
  return () => clearInterval(timer);
}

/** Resolves when the instance serves. @throws Error in one line if it cannot join */
export async function joinCluster(settings: JoinSettings): Promise<JoinedInstance> {
  const stopped = new Completion();
  const agreement = await agreed(settings, stopped);
  const stop = announceLoading(settings.bus);
  try {
    return await join({ ...settings, root: agreement.root ?? settings.root }, agreement, stopped);
  } finally {
    stop();
  }
}

function agreed(settings: JoinSettings, stopped: Completion): Promise<Agreement> {
  const { bus, root, pages, rootIn, hashKey } = settings;
  const tokenMark = pages.token === undefined ? undefined : tokenDigest(pages.token);
  return agreeOn(
    bus,
    { modelFingerprint: root.modelFingerprint, root, rootIn, tokenMark, hashKey },
    {
      log: (line) => settings.log(line),
      onOverruled: (why) => stopped.end(why),
    },
  );
}

async function join(settings: JoinSettings, agreement: Agreement, stopped: Completion): Promise<JoinedInstance> {
  const { root, role, pages, roleSwitch = false, keepsRole = false, lending: manager } = settings;
  const canSwitchRole = !keepsRole && (role === 'prefill' || role === 'decode' || (role === 'mixed' && roleSwitch));
  const hub = new MemoryHub();
  const threads = hub.connect();
  const onTaken = (): void => stopped.end('another instance has its lender number');
  const recordsLost = agreement.restored === true;
  const lenders = manager && (await LenderLinks.open({ ...settings, threads, manager, lost: recordsLost, onTaken }));
  let instance: ClusterInstance | undefined;
  const thread = new InstanceThread({
    entry: settings.entry,
    ...{ hub, bus: threads },
    data: {
      settings: settings.settings(root),
      address: ownAddress,
      role,
      incarnation: lenders?.incarnation ?? 1,
      // If the role may change, prompts are received in every role.
      receivesPrompts: canSwitchRole || role === 'decode',
      peers: 'processes',
      pages: { ...pages, token: tokenOf(pages, agreement) },
      lender: lenders?.instance,
      traces: false,
      hashKey: Uint32Array.from(agreement.hashKey),
      loaded: undefined,
    },
    log: (line) => settings.log(line),
    onOutputs: (message) => instance?.onOutputs(message),
    watchdogUs: settings.watchdogUs,
  });
  subscribeTo(threads, 'peer', ['*', ownAddress], (wire, [to]) => instance?.sendToPeer(Number(to), wire));
  const { description, snapshot } = await thread.ready;
  // Memory of other lenders is added as they join.
  const ownTokens = lenders === undefined ? description.capacityTokens : Number.POSITIVE_INFINITY;
  const capacityTokens = Math.min(ownTokens, description.contextTokens);
  const onReplaced = (): void => stopped.end(`another process has joined as ${settings.name}`);
  const joined = new ClusterInstance({
    ...{ ...settings, agreement, capacityTokens, thread, canSwitchRole, onReplaced },
    ...announcedOf(description),
    isManager: () => lenders?.isManager,
  });
  instance = joined;
  joined.start(snapshot);
  lenders?.start(lenderOf(description, root, agreement));
  // Announces the loss at once instead of after the heartbeat timeout.
  const stops = endOf(thread);
  void stops.then(() => Promise.all([joined.close(), lenders?.close()]));
  const close = async (): Promise<void> => {
    const left = joined.close();
    await thread.close();
    await Promise.all([left, lenders?.close()]);
    await threads.close();
  };
  const ended = Promise.race([stopped.ended, stops]);
  const drain = (timeoutMs: number) => endsWithin(Promise.race([joined.drain(), ended]), timeoutMs);
  return {
    ...{ description, hashKey: agreement.hashKey, ended, isHung: () => thread.isHung, drain, close },
    ...shownOf(settings.bus, thread, joined),
  };
}

/** What of the description other processes need. */
function announcedOf({ fetchBytesPerToken, stageLayers, pagesAddress, isa }: InstanceDescription) {
  return { fetchBytesPerToken, stageLayers, pagesAddress, isa };
}

/** What the probes of the instance show. */
function shownOf(bus: Bus, thread: InstanceThread, joined: ClusterInstance) {
  const notReadyReason = readinessOf(bus, thread, joined);
  return { snapshot: () => joined.snapshot, role: () => joined.role, notReadyReason };
}

/** Returns the reason why gateways cannot use the instance. */
function readinessOf(bus: Bus, thread: InstanceThread, joined: ClusterInstance): () => string | undefined {
  let isConnected = true;
  bus.watchConnection((up) => {
    isConnected = up;
  });
  return () => {
    if (!isConnected) return 'the NATS server is unreachable';
    if (thread.isHung) return 'a compute thread hangs';
    return joined.gateways === 0 ? 'no gateway has a session with the instance' : undefined;
  };
}

/** Whether the promise resolves within the time. */
export async function endsWithin(done: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  const inTime = await Promise.race([done.then(() => true), timeout]);
  clearTimeout(timer);
  return inTime;
}

/** Why the thread does not serve any more. */
function endOf({ ended, hung }: InstanceThread): Promise<string> {
  return Promise.race([
    ended.then(() => 'the instance ended: see the log lines above'),
    hung.then(() => 'the compute thread of the instance hangs'),
  ]);
}

function tokenOf({ token }: JoinSettings['pages'], agreement: Agreement): string {
  const agreed = token ?? agreement.pages?.token;
  if (agreed === undefined) throw new Error('Cannot join the cluster: its record has no token for pages');
  return agreed;
}

/** For blocks of equal identity, all lenders compute the same bits with the same kernels. */
function lenderOf({ lends, isa }: InstanceDescription, root: BlockRoot, { hashKey }: Agreement): Lender {
  if (lends?.attentionAddress === undefined)
    throw new Error('Cannot lend: the instance has no remote attention server');
  return {
    identity: `${identityOf(root, hashKey)} ${isa}`,
    lendableBlocks: lends.blocks,
    attentionAddress: lends.attentionAddress,
  };
}
