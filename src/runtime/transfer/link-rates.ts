// Measures the rate of one link at a time, from the counters of a messenger that sends to several instances.
import type { LinkMeter } from '../../core/cost/links/link-meter.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { Messenger } from './messenger.ts';

interface Streams {
  readonly peer: InstanceIndex;
  readonly bytesBefore: number;
  readonly secondsBefore: number;
  /** Bytes of all streams since then. */
  bytes: number;
  readonly open: Set<string>;
}

/**
 * A sample lasts from the first of overlapping streams to the end of the last. It counts if all of them went to one
 * instance and the messenger sent nothing else meanwhile.
 */
export class LinkRates {
  readonly #messenger: Pick<Messenger, 'counts'>;
  readonly #meter: LinkMeter;
  #streams: Streams | undefined;

  constructor(messenger: Pick<Messenger, 'counts'>, meter: LinkMeter) {
    this.#messenger = messenger;
    this.#meter = meter;
  }

  /** Bytes of a stream are about to be sent. */
  add(peer: InstanceIndex, stream: string, bytes: number): void {
    if (this.#streams !== undefined && this.#streams.peer !== peer) this.#streams = undefined;
    else if (this.#streams === undefined) {
      const { bytes: bytesBefore, copySeconds: secondsBefore } = this.#messenger.counts;
      this.#streams = { peer, bytesBefore, secondsBefore, bytes: 0, open: new Set() };
    }
    if (this.#streams === undefined) return;
    this.#streams.open.add(stream);
    this.#streams.bytes += bytes;
  }

  /** The stream has arrived, or was stopped: then fewer bytes have left, and the sample is dropped. */
  ended(nowUs: number, stream: string): void {
    const streams = this.#streams;
    if (streams === undefined || !streams.open.delete(stream) || streams.open.size > 0) return;
    this.#streams = undefined;
    const { bytes, copySeconds } = this.#messenger.counts;
    if (bytes - streams.bytesBefore !== streams.bytes) return;
    this.#meter.transferred(nowUs, streams.peer, streams.bytes, (copySeconds - streams.secondsBefore) * 1e6);
  }
}
