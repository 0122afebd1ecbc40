// What an instance has put on its ways to others, which ways these are, and what is not known to have arrived.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';
import type { Messenger, PageTransport, ReceiveBufferHandle } from './messenger.ts';

interface Link {
  bytes: number;
  backlogBytes: number;
  /** There something was sent to last. */
  landing: ReceiveBufferHandle;
  way: PageTransport | undefined;
}

export class LinkCounters {
  readonly #messenger: Pick<Messenger, 'transportTo'>;
  readonly #links = new Map<InstanceIndex, Link>();
  /** By name: bytes that are on their way, to whom. */
  readonly #streams = new Map<string, { readonly link: Link; bytes: number }>();

  constructor(messenger: Pick<Messenger, 'transportTo'>) {
    this.#messenger = messenger;
  }

  /** In the order of first use. */
  get all(): readonly LinkSnapshot[] {
    return Array.from(this.#links, ([to, link]) => {
      const { bytes, backlogBytes, landing } = link;
      // Connections that nobody needs are closed: what they were is remembered.
      link.way = this.#messenger.transportTo(landing) ?? link.way;
      return { to, bytes, backlogBytes, ...(link.way && { transport: link.way }) };
    });
  }

  /** So much more of a stream goes there. */
  add(to: InstanceIndex, landing: ReceiveBufferHandle, stream: string, bytes: number): void {
    const link = this.#links.get(to) ?? { bytes: 0, backlogBytes: 0, landing, way: undefined };
    this.#links.set(to, link);
    const known = this.#streams.get(stream) ?? { link, bytes: 0 };
    this.#streams.set(stream, known);
    link.landing = landing;
    link.bytes += bytes;
    link.backlogBytes += bytes;
    known.bytes += bytes;
  }

  /** All of it has arrived, or nobody wants it any more. */
  settle(stream: string): void {
    const known = this.#streams.get(stream);
    if (known === undefined) return;
    known.link.backlogBytes -= known.bytes;
    this.#streams.delete(stream);
  }
}
