// Hand-off: prompts computed here that other instances decode, and prompts computed elsewhere that are decoded here (Mooncake, section 3).

import { assertNever } from '../../../util/assert-never.ts';
import { pagesOfLayout } from '../../kvcache/sparsity/slot-pages.ts';
import { SparsePlan } from '../../kvcache/sparsity/sparse-plan.ts';
import type { HandOffMessage, InstanceEvent } from '../../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../../protocol/ids.ts';
import { isHandOffMessage } from '../../protocol/peer-messages.ts';
import {
  type Continuation,
  type Handled,
  type Identified,
  InstanceComponent,
  type InstanceContext,
  type LeaveReason,
  type StepDraft,
} from '../../scheduler/component.ts';
import type { RunningRequest } from '../../scheduler/executor/executor.ts';
import type { InFlight } from '../../scheduler/step-in-flight.ts';
import { DecodeCheck } from './decode-check.ts';
import { KvReceiver } from './kv-receiver.ts';
import { KvSender } from './kv-sender.ts';
import { HostReceiveMemory, PageReceiveMemory } from './receive-memory.ts';

export interface HandOffConfig {
  /** Keys and values are sent layer by layer while the rest is computed; else once the prompt is computed. */
  readonly layerWise: boolean;
  /** Tokens of host memory for receive buffers. Blocks cached there are evicted for them. */
  readonly receiveTokens: number;
  /** Pages of the pool for receive buffers instead, so that loading copies nothing. */
  readonly receivePages?: number;
  /** The decode instance refuses a received prompt whose decode would be late, or would not fit. */
  readonly rechecksAdmission: boolean;
  /** Prompts start only once they have memory at their receivers. */
  readonly reservesFirst?: boolean | undefined;
}

export class HandOffs<Request extends Identified, S extends RunningRequest> extends InstanceComponent<Request, S> {
  readonly sender: KvSender<Request, S>;
  readonly receiver: KvReceiver<Request>;
  readonly #context: InstanceContext<Request, S>;
  readonly #check: DecodeCheck<Request, S> | undefined;
  readonly #plan: SparsePlan | undefined;
  /** A prompt gets its memory when an attention worker returns. */
  #waitsForWorker = false;

  /** @param config undefined: prompts are not handed off */
  constructor(context: InstanceContext<Request, S>, config: HandOffConfig | undefined) {
    super();
    const { kvCache, kvCaches } = context;
    const { sparsity, groups, blockTokens } = context.config;
    this.#context = context;
    this.#plan = sparsity && new SparsePlan(sparsity, groups, blockTokens);
    this.sender = new KvSender(context, config?.layerWise !== false, config?.reservesFirst === true);
    const memory =
      config?.receivePages === undefined
        ? new HostReceiveMemory(kvCache, config?.receiveTokens ?? 0)
        : new PageReceiveMemory(context, kvCaches, (fits) => this.#place(fits));
    this.receiver = new KvReceiver(context, memory);
    this.#check = config?.rechecksAdmission === true ? new DecodeCheck(context) : undefined;
  }

  override handle(event: InstanceEvent<Request, unknown>): Handled {
    if (event.kind === 'peer') {
      if (!isHandOffMessage(event.message)) return undefined;
      const why = this.#receive(event.from, event.message);
      if (why !== undefined) this.#context.ignore(event, why);
      return 'replan';
    }
    if (event.kind === 'promptReceived') {
      const { from, id, firstEvents } = event;
      if (!this.receiver.receive(from, id, firstEvents)) this.#context.ignore(event, `request ${id} is not expected`);
      return 'replan';
    }
    if (event.kind === 'streamBroken') {
      const running = this.sender.end(event.id, event.to);
      if (running === undefined) return undefined;
      this.#context.handedOff(running);
      this.#context.announce(connectionBroke(event));
      return 'replan';
    }
    return undefined;
  }

  /** The cache that receives a prompt. */
  #place(fits: (worker: number) => boolean): number | undefined {
    const { scheduler, kvCaches } = this.#context;
    const worker = scheduler.placeReceived(fits);
    this.#waitsForWorker = worker === undefined && [...kvCaches.all.keys()].some(fits);
    return worker;
  }

  /** Returns why the message changed nothing. */
  #receive(from: InstanceIndex, message: HandOffMessage<Request>): string | undefined {
    const { id } = message;
    const { requests, config, flight } = this.#context;
    switch (message.kind) {
      case 'reserve':
        if (message.incarnation !== undefined && message.incarnation !== config.incarnation)
          return `request ${id} is meant for incarnation ${message.incarnation}`;
        if (requests.has(id)) {
          this.receiver.confirm(message.senders ?? [from], id);
          return `request ${id} is live already`;
        }
        this.#reserve(from, message);
        return undefined;
      case 'reserved':
        return this.sender.granted(id, from, message.reservation ?? 0, flight?.step)
          ? undefined
          : `request ${id} is not handed off here`;
      case 'received':
      case 'declined': {
        const running = this.sender.end(id, from);
        if (running === undefined) return `request ${id} is not handed off here`;
        if (message.kind === 'declined') this.#context.handOffDeclined(running);
        else this.#context.handedOff(running);
        return undefined;
      }
      case 'release':
        return this.receiver.release(from, id) ? undefined : `request ${id} is not expected`;
      case 'withdraw':
        return this.receiver.withdraw(from, id, message.reservation)
          ? undefined
          : `reservation ${message.reservation} of request ${id} is not known`;
      default:
        return assertNever(message);
    }
  }

  #reserve(from: InstanceIndex, message: Extract<HandOffMessage<Request>, { kind: 'reserve' }>): void {
    const { promptTokens, resumedTokens = 0, kvBudget } = this.#context.executor.size(message.request);
    const sparsity = this.#plan?.budgetedKv(kvBudget, promptTokens - resumedTokens).sparsity;
    const slotPages = sparsity && pagesOfLayout(sparsity.layout);
    if (slotPages === message.slotPages)
      this.receiver.reserve(from, message, message.tokens ?? promptTokens, sparsity?.layout);
    // The instances have other sparse layers or budgets.
    else this.#context.emit({ kind: 'send', to: from, message: { kind: 'declined', id: message.id } });
  }

  override resend(): void {
    this.#context.config.messageCounts?.count('lost', 'reserve', this.sender.resend());
  }

  override accepted(
    running: S,
    request: Request,
    { decodeAt: to, decodeIncarnation: incarnation }: Continuation,
  ): void {
    if (to !== undefined) this.sender.add(request, running, { to, incarnation });
  }

  /** A received prompt is loaded into its blocks: its receive buffer is freed. */
  override started({ id, received }: S): void {
    if (received !== undefined) this.receiver.freeBuffer(id);
  }

  override releaseRequest(id: RequestId, running: S | undefined, reason: LeaveReason): boolean {
    this.sender.cancel(id);
    if (reason === 'finished' && running !== undefined) this.#check?.ended(running);
    const waits = running?.received !== undefined && !running.started;
    return (reason === 'cancelled' || waits) && this.receiver.freeBuffer(id);
  }

  /** Schedules received prompts, and refuses those that would decode late. */
  override admit(): void {
    if (this.receiver.size === 0) return;
    if (this.#waitsForWorker) {
      this.#waitsForWorker = false;
      this.receiver.grant();
    }
    const { requests, executor, capacityTokens } = this.#context;
    for (const { id, request, firstEvents, inParts } of this.receiver.takeReceived()) {
      const late = executor.rechecks(request) ? this.#check?.refusal(request, capacityTokens) : undefined;
      if (late !== undefined) {
        this.receiver.freeBuffer(id);
        this.#context.notify(id, late);
        continue;
      }
      const running = this.#context.resume(request, firstEvents, inParts);
      const pages = this.receiver.pagesOf(id);
      running.sequence.receivedPages = pages;
      if (pages !== undefined && this.#context.scheduler.canStartAt(pages.worker))
        running.sequence.placeAt(pages.worker);
      else if (pages !== undefined) running.sequence.reset();
      requests.add(running);
    }
  }

  /** While prompts are sent, steps run one at a time: each is streamed by itself. */
  override contribute(step: StepDraft<S>): void {
    if (this.sender.size > 0) step.stepsMax = 1;
  }

  override launched(flight: InFlight<S> | undefined): void {
    if (this.sender.size === 0) return;
    if (flight !== undefined) this.sender.launched(flight.step);
    this.sender.catchUp();
    this.sender.yieldMemory();
  }

  override afterStep(): void {
    this.sender.stepEnded();
  }

  override get expectedPrompts(): Iterable<RequestId> {
    return this.receiver.expectedPrompts();
  }

  override parked(): number {
    return this.sender.computed;
  }

  override check(): void {
    this.receiver.check();
  }
}

/** For the conductor: the request can continue elsewhere. */
export function connectionBroke({ to, id }: { readonly to: InstanceIndex; readonly id: RequestId }) {
  return { kind: 'released', id, why: `the connection to instance ${to} broke` } as const;
}
