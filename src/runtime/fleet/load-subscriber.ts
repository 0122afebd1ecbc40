// Subscribes to the load that SGLang pushes for one data-parallel rank.
import { z } from 'zod';
import type { EngineLoad } from '../../core/fleet/engine-load.ts';
import { LoadSequence } from '../../core/fleet/load-sequence.ts';
import { nowUs } from '../threads/alarm.ts';
import type { LoadSource } from './engine-dialect.ts';
import { decodeMsgpack } from './msgpack.ts';
import { reasonOf } from './reason-of.ts';
import { ZmtpSubscription } from './zmtp-subscription.ts';

const count = z.int().min(0);
/** SGLang's LoadStat: later versions append fields. */
const loadStat = z
  .tuple([z.literal('LoadStat'), count, count, count, count])
  .rest(z.unknown())
  .transform(([, running, waiting, tokens, capacityTokens]) => ({ running, waiting, tokens, capacityTokens }));

export interface LoadHandler {
  onLoad(load: EngineLoad): void;
  log(message: string): void;
}

export class LoadSubscriber {
  readonly #sequence = new LoadSequence();
  readonly #subscription: ZmtpSubscription;

  /**
   * @param capacityTokens of the rank, for readings that state none
   * @throws Error in one line if the address is invalid
   */
  constructor({ endpoint, topic }: LoadSource, capacityTokens: number | undefined, handler: LoadHandler) {
    let isUnreadable = false;
    this.#subscription = new ZmtpSubscription(endpoint, topic, {
      onConnected: () => {
        isUnreadable = false;
        this.#sequence.connected();
      },
      onMessage: (number, payload) => {
        try {
          const load = readLoadStat(payload, capacityTokens);
          if (this.#sequence.received(nowUs(), number)) handler.onLoad(load);
        } catch (error) {
          if (!isUnreadable) handler.log(`Load of ${endpoint} is polled: a reading is invalid: ${reasonOf(error)}`);
          isUnreadable = true;
        }
      },
      onInterrupted: (reason) => handler.log(`Load of ${endpoint} is polled: the connection ended: ${reason}`),
    });
  }

  /** The latest reading holds: the load need not be polled. */
  get isFresh(): boolean {
    return this.#sequence.isFresh(nowUs());
  }

  close(): void {
    this.#subscription.close();
  }
}

/** @param capacityTokens used where the reading states none @throws Error in one line if it is no load of SGLang */
export function readLoadStat(payload: Uint8Array, capacityTokens: number | undefined): EngineLoad {
  const { running, waiting, tokens, capacityTokens: stated } = loadStat.parse(decodeMsgpack(payload));
  const total = stated || capacityTokens;
  return { running, waiting, usage: !total ? 0 : Math.min(1, tokens / total) };
}
