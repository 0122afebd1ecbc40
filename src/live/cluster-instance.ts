// An instance that serves the gateways of a cluster: what they order goes to its thread, what the thread says goes to whoever asked.
import { type Agreement, identityOf } from '../cluster/agreement.ts';
import type { GenerationEvent, InstanceSnapshot, RequestId } from '../cluster/ports.ts';
import type { Bus } from './bus/bus.ts';
import type { InstanceThread } from './instance-thread.ts';
import type { BlockRoot, EventsMessage } from './protocol.ts';
import { nothingYet } from './snapshots.ts';
import { type Peer, Station } from './station.ts';
import { encode } from './wire/codec.ts';
import {
  type GatewayAnnouncement,
  type Order,
  readGateway,
  readOrder,
  type Status,
  type Turn,
} from './wire/messages.ts';

export interface ClusterInstanceOptions {
  readonly bus: Bus;
  readonly name: string;
  readonly life: number;
  readonly agreement: Agreement;
  readonly root: BlockRoot;
  readonly capacityTokens: number;
  /** Token ids are below. */
  readonly vocabSize: number;
  readonly thread: Pick<InstanceThread, 'send' | 'interrupt'>;
  /** Another process has joined under its name. */
  readonly onReplaced: () => void;
  readonly log: (message: string) => void;
}

type Gateway = Peer<GatewayAnnouncement>;

/** Of a gateway, while its session lasts. */
interface Served {
  readonly peer: Gateway;
  /** Its requests, with the tokens of output that it has been told of. */
  readonly requests: Map<RequestId, number>;
  reports: number;
}

interface Owned {
  readonly served: Served;
  /** As the gateway calls it. */
  readonly id: RequestId;
}

export class ClusterInstance {
  readonly #options: ClusterInstanceOptions;
  readonly #station: Station<GatewayAnnouncement>;
  /** By session: a gateway that began anew is another one. */
  readonly #served = new Map<Gateway, Served>();
  /** By the names that requests have here: names of gateways' own may be the same. */
  readonly #owned = new Map<RequestId, Owned>();
  #snapshot: InstanceSnapshot = nothingYet;
  #journal = 0;

  constructor(options: ClusterInstanceOptions) {
    this.#options = options;
    const { bus, name, life, log, onReplaced, root, agreement, capacityTokens } = options;
    this.#station = new Station<GatewayAnnouncement>({
      ...{ bus, name, life, log, onReplaced },
      kind: 'instance',
      about: { role: 'mixed', root, identity: identityOf(root, agreement.hashKey), capacityTokens },
      read: readGateway,
      onJoined: (peer) => this.#served.set(peer, { peer, requests: new Map(), reports: 0 }),
      onLost: (peer) => this.#lose(peer),
      onMessage: (peer, message) => this.#take(peer, readOrder(message)),
      status: (peer) => encode(this.#status(peer)),
    });
  }

  /** Says that it is there. */
  start(snapshot: InstanceSnapshot): void {
    this.#snapshot = snapshot;
    this.#station.start();
  }

  /** Gateways have their requests done elsewhere. */
  close(): void {
    this.#station.close();
  }

  /** One turn of the thread's loop: to each gateway what is its own, and what the cache has to all. */
  hear({ events, snapshot, prefilled, letGo, journals, blocks }: EventsMessage): void {
    this.#snapshot = snapshot;
    this.#journal = journals.at(-1)?.number ?? this.#journal;
    const turns = new Map<Served, { events: [RequestId, GenerationEvent][]; letGo: [RequestId, string][] }>();
    const turnOf = (served: Served) => {
      const known = turns.get(served);
      if (known !== undefined) return known;
      const turn = { events: [], letGo: [] };
      turns.set(served, turn);
      return turn;
    };
    if (journals.length > 0 || blocks !== undefined) for (const served of this.#served.values()) turnOf(served);
    for (const [here, event] of events) {
      const owned = this.#owned.get(here);
      if (owned === undefined) continue;
      turnOf(owned.served).events.push([owned.id, event]);
      this.#count(here, owned, event);
    }
    for (const [here, why] of letGo) {
      const owned = this.#owned.get(here);
      if (owned === undefined) continue;
      turnOf(owned.served).letGo.push([owned.id, why]);
      this.#forget(here, owned);
    }
    if (prefilled.length > 0) throw new Error('Cluster broken: a prompt leaves an instance that is mixed');
    for (const [{ peer }, turn] of turns) this.#tell(peer, { ...turn, prefilled, journals, blocks });
  }

  #count(here: RequestId, owned: Owned, event: GenerationEvent): void {
    if (event.kind === 'finished' || event.kind === 'failed') this.#forget(here, owned);
    if (event.kind !== 'tokens') return;
    const { requests } = owned.served;
    requests.set(owned.id, (requests.get(owned.id) ?? 0) + event.tokens.length);
  }

  #forget(here: RequestId, { served, id }: Owned): void {
    served.requests.delete(id);
    this.#owned.delete(here);
  }

  #take(peer: Gateway, order: Order): void {
    const served = this.#served.get(peer);
    if (served === undefined) return;
    const { thread } = this.#options;
    switch (order.kind) {
      case 'submit':
        this.#submit(served, order);
        break;
      case 'cancel': {
        const here = nameHere(peer, order.id);
        const owned = this.#owned.get(here);
        if (owned === undefined) return;
        this.#forget(here, owned);
        thread.send({ kind: 'cancel', id: here });
        if (order.interrupt) thread.interrupt();
        break;
      }
      case 'tellBlocks':
        thread.send(order);
    }
  }

  #submit(served: Served, { request }: Extract<Order, { kind: 'submit' }>): void {
    const { id, prompt, resumed, sampling } = request;
    const wrong = this.#notOfModel(
      prompt,
      resumed?.tokens ?? [],
      sampling.logitBias.map(([token]) => token),
    );
    if (wrong !== undefined) {
      const message = `Cannot generate: token ${wrong} is not of the model: it has ${this.#options.vocabSize}`;
      const failed = { kind: 'failed', code: 'ENGINE_FAILED', message, retryAfterMs: undefined } as const;
      this.#tell(served.peer, { events: [[id, failed]], prefilled: [], letGo: [], journals: [], blocks: undefined });
      return;
    }
    const here = nameHere(served.peer, id);
    served.requests.set(id, 0);
    this.#owned.set(here, { served, id });
    this.#options.thread.send({ kind: 'submit', request: { ...request, id: here } });
  }

  /** Kernels read what these ids point to. */
  #notOfModel(...lists: readonly Iterable<number>[]): number | undefined {
    for (const list of lists) for (const token of list) if (token >= this.#options.vocabSize) return token;
    return undefined;
  }

  #lose(peer: Gateway): void {
    const served = this.#served.get(peer);
    this.#served.delete(peer);
    for (const id of served?.requests.keys() ?? []) {
      const here = nameHere(peer, id);
      this.#owned.delete(here);
      this.#options.thread.send({ kind: 'cancel', id: here });
    }
  }

  #status(peer: Gateway): Status {
    const served = this.#served.get(peer);
    const requests = Array.from(served?.requests ?? [], ([id, outputs]) => ({ id, outputs }));
    if (served !== undefined) served.reports++;
    return { snapshot: this.#snapshot, number: served?.reports ?? 0, journal: this.#journal, requests };
  }

  #tell(peer: Gateway, turn: Turn): void {
    this.#station.send(peer, encode(turn));
  }
}

function nameHere({ member: { name, life }, session }: Gateway, id: RequestId): RequestId {
  return `${name}.${life}.${session}/${id}`;
}
