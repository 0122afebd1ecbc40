// What an instance has to do with those of other processes: prompts out and in, prefixes, and prompts that they compute together.

import type { PipelineGroup, PrefixFetch } from '../../core/protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { InstanceRole } from '../../core/protocol/instance-report.ts';
import type { GenerationRequest, LinkSnapshot } from '../../core/protocol/ports.ts';
import { RemotePipeline } from '../pipeline/remote-pipeline.ts';
import type { InstanceThread } from '../threads/instance-thread.ts';
import type { HandOffEnd } from '../transfer/hand-off-session.ts';
import type { PeerWire } from '../transfer/live-hand-offs.ts';
import { isPrefixPeerWire, RemotePrefixes } from '../transfer/remote-prefixes.ts';
import { RemotePromptsIn } from '../transfer/remote-prompts-in.ts';
import { RemotePromptsOut } from '../transfer/remote-prompts-out.ts';
import type { InstanceCommand, NamedPrefix } from '../wire/messages.ts';
import type { SessionName } from '../wire/names.ts';
import { namedLinks } from './peer-links.ts';

export interface InstancePeersOptions {
  /** The process on the bus. */
  readonly own: HandOffEnd;
  readonly thread: Pick<InstanceThread, 'send'>;
  readonly role: InstanceRole;
  /** May it be given another role? */
  readonly switches: boolean;
  /** Can prefixes be fetched from it, and by it? */
  readonly fetches: boolean;
  /** Layers of the model, of which a group may run ranges; undefined: it computes prompts whole. */
  readonly stageLayers: number | undefined;
  /** Something of a gateway's request is to come here: the name that it has here; undefined where the session is not known. @param awaited nothing is computed of it here before it has landed */
  readonly expect: (gateway: SessionName, request: GenerationRequest, awaited: boolean) => RequestId | undefined;
  readonly landed: (here: RequestId) => void;
  /** It is none of this instance's any more. */
  readonly left: (here: RequestId) => void;
}

/** What of a request's order is about other instances, as the thread knows them. */
export interface PeerTargets {
  readonly decodeAt: InstanceIndex | undefined;
  readonly group: PipelineGroup | undefined;
  readonly prefix: PrefixFetch | undefined;
}

export class InstancePeers {
  /** Undefined: its prompts stay here. */
  readonly #out: RemotePromptsOut | undefined;
  /** Undefined: nobody else's prompts land here. */
  readonly #in: RemotePromptsIn | undefined;
  /** Undefined: it computes no prompts with others. */
  readonly #stages: RemotePipeline | undefined;
  /** Undefined: prefixes stay where they are. */
  readonly #prefixes: RemotePrefixes | undefined;
  /** Of all that there were, by the numbers that the thread knows them by: what went to them is counted. */
  readonly #names = new Map<InstanceIndex, string>();

  constructor({ own, thread, role, switches, fetches, stageLayers, expect, landed, left }: InstancePeersOptions) {
    const met = (index: InstanceIndex, name: string): void => {
      this.#names.set(index, name);
    };
    if (fetches) this.#prefixes = new RemotePrefixes({ ...own, thread, met, keeps: role === 'store' });
    if (role === 'prefill' || switches) {
      const out = new RemotePromptsOut({ ...own, thread, met, taken: left });
      this.#out = out;
      if (stageLayers !== undefined)
        this.#stages = new RemotePipeline({
          ...{ ...own, thread, met, layers: stageLayers },
          sourceOf: (named) => this.#prefixes?.indexOf(named),
          expect: (gateway, request) => expect(gateway, request, false),
          leaves: (leaving, decodeAt) => out.add(leaving, decodeAt),
        });
    }
    if (role !== 'decode' && !switches) return;
    this.#in = new RemotePromptsIn({
      ...{ ...own, thread, left, landed },
      expect: ({ gateway, request }) => expect(gateway, request, true),
    });
  }

  start(): void {
    for (const part of this.#parts) part.start();
  }

  close(): void {
    for (const part of this.#parts) part.close();
  }

  get #parts(): readonly { start(): void; close(): void }[] {
    return [this.#prefixes, this.#out, this.#stages, this.#in].filter((part) => part !== undefined);
  }

  /** The thread speaks. */
  send(to: InstanceIndex, wire: PeerWire): void {
    if (isPrefixPeerWire(wire)) this.#prefixes?.send(to, wire);
    else if (this.#stages?.reaches(to) === true) this.#stages.send(to, wire);
    else if (isAnswer(wire)) this.#in?.send(to, wire);
    else this.#out?.send(to, wire);
  }

  /** It has ended here, or is cancelled. */
  forget(here: RequestId): void {
    this.#out?.forget(here);
    this.#stages?.forget(here);
    this.#in?.forget(here);
  }

  /** A gateway's request is to be computed here under that name. */
  targetsOf(
    here: RequestId,
    gateway: Pick<SessionName, 'name' | 'incarnation'>,
    { request, decodeAt, prefix, group: named }: Extract<InstanceCommand, { kind: 'submit' }>,
  ): PeerTargets {
    // Where one of them is not known this one computes it all.
    const group = decodeAt && named && this.#stages?.join(here, { gateway, request, group: named, index: 0, decodeAt });
    const leaving = decodeAt && { ...gateway, session: decodeAt.session };
    return {
      decodeAt:
        group?.decodeAt ??
        (leaving && this.#out?.add({ kind: 'reserve', id: here, gateway: leaving, request }, decodeAt)),
      group,
      prefix: prefix && this.#fetchOf(prefix),
    };
  }

  /** Undefined where nobody of that name can be asked: it is computed. */
  #fetchOf({ name, incarnation, ...wanted }: NamedPrefix): PrefixFetch | undefined {
    const from = this.#prefixes?.indexOf({ name, incarnation });
    return from === undefined ? undefined : { from, ...wanted };
  }

  /** Of the thread's links: with the names of the other ends. */
  named(links: readonly LinkSnapshot[]): readonly LinkSnapshot[] {
    return namedLinks(links, (to) => this.#names.get(to));
  }
}

/** Is it said to an instance that prefills? */
function isAnswer(wire: PeerWire): boolean {
  return wire.kind === 'message' && ['reserved', 'received', 'declined'].includes(wire.message.kind);
}
