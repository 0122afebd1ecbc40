// What the parts of the conductor share: time, effects, the accepted requests and the instances.

import { SlotMap } from '../../util/slot-map.ts';
import { wideZero } from '../../util/wide-zero.ts';
import type { ConductorEffect } from '../protocol/effects.ts';
import type { RequestId } from '../protocol/ids.ts';
import type { MessageAnomaly } from '../protocol/lending-messages.ts';
import type { CountedMessage } from '../protocol/message-counts.ts';
import type { TrackedRequest } from './attempts.ts';
import type { ConductorConfig } from './conductor-config.ts';
import { InstanceTable } from './instance-table.ts';

export class ConductorContext<Request extends { readonly id: RequestId }> {
  readonly config: ConductorConfig<Request>;
  readonly instances: InstanceTable;
  /** Requests that are accepted and not ended, in the order of their submits. */
  readonly requests = new SlotMap<RequestId, TrackedRequest<Request>>();
  /** No new requests are accepted. */
  draining = false;
  /** Time of the current step. */
  nowUs: number = wideZero;
  #effects: ConductorEffect<Request>[] = [];

  constructor(config: ConductorConfig<Request>) {
    this.config = config;
    this.instances = new InstanceTable(config.instances);
  }

  beginStep(nowUs: number): void {
    this.nowUs = nowUs;
    this.#effects = [];
  }

  /** Effects of the current step, in order. */
  get effects(): readonly ConductorEffect<Request>[] {
    return this.#effects;
  }

  emit(effect: ConductorEffect<Request>): void {
    this.#effects.push(effect);
  }

  /** The event has no effect: logs the reason. */
  ignore(reason: string): void {
    this.emit({ kind: 'ignored', message: `Ignored ${reason}` });
  }

  /** No request is accepted any more. */
  drain(): void {
    this.draining = true;
    this.reportDrained();
  }

  /** Emits `drained` once no request is left. */
  reportDrained(): void {
    if (this.draining && this.requests.size === 0) this.emit({ kind: 'drained' });
  }

  countMessage(anomaly: MessageAnomaly, message: CountedMessage): void {
    this.config.messageCounts?.count(anomaly, message);
  }
}
