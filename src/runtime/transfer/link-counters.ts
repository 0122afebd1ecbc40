// Counts for each link of an instance the bytes sent, the bytes not yet known to have arrived, and the transport.
import { LinkMeter } from '../../core/cost/links/link-meter.ts';
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import { nowUs } from '../threads/alarm.ts';
import { LinkRates } from './link-rates.ts';
import type { Messenger, PageTransport, ReceiveBufferHandle } from './messenger.ts';

interface Link {
  bytes: number;
  backlogBytes: number;
  /** The receive buffer used last. */
  receiveBuffer: ReceiveBufferHandle;
  transport: PageTransport | undefined;
}

export class LinkCounters {
  readonly #messenger: Pick<Messenger, 'transportTo' | 'counts'>;
  readonly #meter = new LinkMeter();
  readonly #rates: LinkRates;
  readonly #links = new Map<InstanceIndex, Link>();
  #changes = 0;
  /** By name, the bytes in flight of each stream. */
  readonly #streams = new Map<string, { readonly link: Link; bytes: number }>();

  constructor(messenger: Pick<Messenger, 'transportTo' | 'counts'>) {
    this.#messenger = messenger;
    this.#rates = new LinkRates(messenger, this.#meter);
  }

  /** How often the bytes have changed. */
  get changes(): number {
    return this.#changes;
  }

  /** In the order of first use. */
  get all(): readonly LinkSnapshot[] {
    return Array.from(this.#links, ([to, link]) => {
      const { bytes, backlogBytes, receiveBuffer } = link;
      // Idle connections are closed; the last transport stays.
      link.transport = this.#messenger.transportTo(receiveBuffer) ?? link.transport;
      const { bytesPerSecond } = this.#meter.report(nowUs(), to);
      return {
        ...{ to, bytes, backlogBytes },
        ...(bytesPerSecond !== undefined && { bytesPerSecond }),
        ...(link.transport && { transport: link.transport }),
      };
    });
  }

  /** Counts more bytes of a stream. */
  add(to: InstanceIndex, receiveBuffer: ReceiveBufferHandle, stream: string, bytes: number): void {
    const link = this.#links.get(to) ?? { bytes: 0, backlogBytes: 0, receiveBuffer, transport: undefined };
    this.#links.set(to, link);
    const known = this.#streams.get(stream) ?? { link, bytes: 0 };
    this.#streams.set(stream, known);
    this.#rates.add(to, stream, bytes);
    this.#changes++;
    link.receiveBuffer = receiveBuffer;
    link.bytes += bytes;
    link.backlogBytes += bytes;
    known.bytes += bytes;
  }

  /** The instance is lost, and its index is never used again. */
  forget(to: InstanceIndex): void {
    const link = this.#links.get(to);
    if (link === undefined) return;
    this.#changes++;
    this.#links.delete(to);
    for (const [stream, known] of this.#streams) if (known.link === link) this.streamEnded(stream);
    this.#meter.forget(to);
  }

  /** The stream has arrived or was stopped: its bytes leave the backlog. */
  streamEnded(stream: string): void {
    const known = this.#streams.get(stream);
    if (known === undefined) return;
    this.#rates.ended(nowUs(), stream);
    this.#changes++;
    known.link.backlogBytes -= known.bytes;
    this.#streams.delete(stream);
  }
}
