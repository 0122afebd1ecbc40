// Links of an instance whose other ends are in other processes: its thread numbers them in its own way, gateways in theirs.
import type { InstanceIndex } from '../../core/protocol/ids.ts';
import type { LinkSnapshot } from '../../core/protocol/ports.ts';

/** With the names of the other ends, as far as they are known. */
export function namedLinks(
  links: readonly LinkSnapshot[],
  nameOf: (to: InstanceIndex) => string | undefined,
): readonly LinkSnapshot[] {
  return links.flatMap((link) => {
    const name = nameOf(link.to);
    return name === undefined ? [] : [{ ...link, name }];
  });
}

/** To places instead: one for each, however often the other end began anew. */
export function placedLinks(
  links: readonly LinkSnapshot[],
  placeOf: (name: string) => InstanceIndex | undefined,
): readonly LinkSnapshot[] {
  const placed = new Map<InstanceIndex, LinkSnapshot>();
  for (const { name, bytes, backlogBytes, ...of } of links) {
    const to = name === undefined ? undefined : placeOf(name);
    if (to === undefined) continue;
    const known = placed.get(to) ?? { to, bytes: 0, backlogBytes: 0 };
    placed.set(to, { ...of, to, bytes: known.bytes + bytes, backlogBytes: known.backlogBytes + backlogBytes });
  }
  return [...placed.values()];
}
