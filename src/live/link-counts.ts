// What an instance has put on its ways to others, and what of it is not known to have arrived.
import type { InstanceIndex } from '../cluster/messages.ts';
import type { LinkSnapshot, RequestId } from '../cluster/ports.ts';

interface Link {
  bytes: number;
  backlogBytes: number;
}

export class LinkCounts {
  readonly #links = new Map<InstanceIndex, Link>();
  /** By request: bytes that are on their way, to whom. */
  readonly #streams = new Map<RequestId, { readonly link: Link; bytes: number }>();

  /** In the order of first use. */
  get all(): readonly LinkSnapshot[] {
    return Array.from(this.#links, ([to, { bytes, backlogBytes }]) => ({ to, bytes, backlogBytes }));
  }

  /** So much more of a request's goes there. */
  add(to: InstanceIndex, id: RequestId, bytes: number): void {
    const link = this.#links.get(to) ?? { bytes: 0, backlogBytes: 0 };
    this.#links.set(to, link);
    const stream = this.#streams.get(id) ?? { link, bytes: 0 };
    this.#streams.set(id, stream);
    link.bytes += bytes;
    link.backlogBytes += bytes;
    stream.bytes += bytes;
  }

  /** All of it has arrived, or nobody wants it any more. */
  settle(id: RequestId): void {
    const stream = this.#streams.get(id);
    if (stream === undefined) return;
    stream.link.backlogBytes -= stream.bytes;
    this.#streams.delete(id);
  }
}
