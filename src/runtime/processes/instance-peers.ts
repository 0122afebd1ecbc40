// The links of an instance to instances of other processes: prompts out and in, prefixes, and pipeline groups.

import type { PipelineGroup, PrefixFetch, PrefixOffer } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { InstanceSnapshot } from '../../core/protocol/ports.ts';
import { RemotePipeline } from '../pipeline/remote-pipeline.ts';
import { nowUs } from '../threads/alarm.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import type { PeerContext } from '../transfer/peer-context.ts';
import { isPrefixPeerWire, RemotePrefixes } from '../transfer/remote-prefixes.ts';
import { RemotePromptsIn } from '../transfer/remote-prompts-in.ts';
import { RemotePromptsOut } from '../transfer/remote-prompts-out.ts';
import type { InstanceCommand, NamedOffer, NamedPrefix } from '../wire/messages.ts';
import type { SessionName } from '../wire/names.ts';
import { PeerLinks } from './peer-links.ts';

export interface InstancePeersOptions extends Omit<PeerContext, 'names'> {
  readonly role: InstanceRole;
  /** The role may change: prompts are then sent and received in every role. */
  readonly canSwitchRole: boolean;
  /** Prefixes can be fetched from the instance, and by it. */
  readonly fetchesPrefixes: boolean;
  /** Layers of the model of which a group may run ranges; undefined: the instance computes whole prompts. */
  readonly stageLayers: number | undefined;
}

/** Other instances that take part in a request, by the thread's indices. */
export interface PeerTargets {
  readonly decodeAt: InstanceIndex | undefined;
  readonly group: PipelineGroup | undefined;
  readonly prefix: PrefixFetch | undefined;
  readonly offer: PrefixOffer | undefined;
}

type ThreadLinks = Pick<InstanceSnapshot, 'links' | 'activationLinks'>;

export class InstancePeers {
  /** Undefined: the instance decodes its own prompts. */
  readonly #promptsOut: RemotePromptsOut | undefined;
  /** Undefined: it decodes no prompts of others. */
  readonly #promptsIn: RemotePromptsIn | undefined;
  /** Undefined: it joins no groups. */
  readonly #pipeline: RemotePipeline | undefined;
  /** Undefined: prefixes are not fetched. */
  readonly #prefixes: RemotePrefixes | undefined;
  /** By the thread's index, the peers that are connected or awaited. */
  readonly #names = new Map<InstanceIndex, string>();
  /** Of prompts and prefixes. */
  readonly #links = new PeerLinks(this.#names);
  readonly #activationLinks = new PeerLinks(this.#names);

  constructor(options: InstancePeersOptions) {
    const { process, thread, requests, role, canSwitchRole, fetchesPrefixes, stageLayers: layers } = options;
    const context: PeerContext = { process, thread, requests, names: this.#names };
    if (fetchesPrefixes) this.#prefixes = new RemotePrefixes(context, role === 'store');
    if (role === 'prefill' || canSwitchRole) {
      const promptsOut = new RemotePromptsOut(context);
      this.#promptsOut = promptsOut;
      if (layers !== undefined)
        this.#pipeline = new RemotePipeline(context, { layers, promptsOut, prefixes: this.#prefixes });
    }
    if (role === 'decode' || canSwitchRole) this.#promptsIn = new RemotePromptsIn(context);
  }

  start(): void {
    for (const part of this.#parts) part.start();
  }

  close(): void {
    for (const part of this.#parts) part.close();
  }

  get #parts(): readonly { start(): void; close(): void }[] {
    return [this.#prefixes, this.#promptsOut, this.#pipeline, this.#promptsIn].filter((part) => part !== undefined);
  }

  /** Sends a message of the thread. */
  send(to: InstanceIndex, wire: PeerWire): void {
    if (isPrefixPeerWire(wire)) this.#prefixes?.send(to, wire);
    else if (this.#pipeline?.reaches(to) === true) this.#pipeline.send(to, wire);
    else if (isReply(wire)) this.#promptsIn?.send(to, wire);
    else this.#promptsOut?.send(to, wire);
  }

  /** The request has ended here or was cancelled. */
  forget(id: RequestId): void {
    this.#promptsOut?.forget(id);
    this.#pipeline?.forget(id);
    this.#promptsIn?.forget(id);
  }

  /** Resolves the instances that a submitted request names. */
  targetsOf(
    id: RequestId,
    gateway: Pick<SessionName, 'name' | 'incarnation'>,
    { request, decodeAt, prefix, offer, group: named }: Extract<InstanceCommand, { kind: 'submit' }>,
  ): PeerTargets {
    // If a member is not connected, this instance computes the whole prompt.
    const group = decodeAt && named && this.#pipeline?.join(id, { gateway, request, group: named, index: 0, decodeAt });
    const session = decodeAt && { ...gateway, session: decodeAt.session };
    return {
      decodeAt:
        group?.decodeAt ??
        (session && this.#promptsOut?.add({ kind: 'reserve', id, gateway: session, request }, decodeAt)),
      group,
      prefix: prefix && this.#fetchOf(prefix),
      offer: offer && this.#offerOf(offer),
    };
  }

  /** Undefined if the source is not connected: the prefix is then computed. */
  #fetchOf({ name, incarnation, ...rest }: NamedPrefix): PrefixFetch | undefined {
    const from = this.#prefixes?.indexOf({ name, incarnation });
    return from === undefined ? undefined : { from, ...rest };
  }

  /** Undefined if the other instance is not connected: nothing is offered. */
  #offerOf({ name, incarnation, blocks }: NamedOffer): PrefixOffer | undefined {
    const to = this.#prefixes?.indexOf({ name, incarnation });
    return to === undefined ? undefined : { to, blocks };
  }

  /** The snapshot's links with the names of their peers. */
  named({ links, activationLinks }: ThreadLinks): ThreadLinks {
    const atUs = nowUs();
    return {
      ...(links && { links: this.#links.named(atUs, links) }),
      ...(activationLinks && { activationLinks: this.#activationLinks.named(atUs, activationLinks) }),
    };
  }
}

/** True for messages to a prefill instance. */
function isReply(wire: PeerWire): boolean {
  return wire.kind === 'message' && ['reserved', 'received', 'declined'].includes(wire.message.kind);
}
