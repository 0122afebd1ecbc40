// Links of an instance to other processes: translated from the thread's indices to names, and from names to the gateway's indices.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';

/** The links with the names of their peers; those without a known name are left out. */
export function namedLinks(
  links: readonly LinkSnapshot[],
  nameOf: (to: InstanceIndex) => string | undefined,
): readonly LinkSnapshot[] {
  return links.flatMap((link) => {
    const name = nameOf(link.to);
    return name === undefined ? [] : [{ ...link, name }];
  });
}

/** The links by the gateway's indices: one for each peer, summed over its sessions. */
export function indexedLinks(
  links: readonly LinkSnapshot[],
  indexOf: (name: string) => InstanceIndex | undefined,
): readonly LinkSnapshot[] {
  const byIndex = new Map<InstanceIndex, LinkSnapshot>();
  for (const { name, bytes, backlogBytes, ...rest } of links) {
    const to = name === undefined ? undefined : indexOf(name);
    if (to === undefined) continue;
    const known = byIndex.get(to) ?? { to, bytes: 0, backlogBytes: 0 };
    byIndex.set(to, { ...rest, to, bytes: known.bytes + bytes, backlogBytes: known.backlogBytes + backlogBytes });
  }
  return [...byIndex.values()];
}
