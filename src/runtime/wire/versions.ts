// Versions of the messages between processes of a cluster: each process states a range, and two processes use the highest common one.

export interface WireVersions {
  /** The oldest version that a process still reads and writes. */
  readonly min: number;
  readonly max: number;
}

/**
 * Those of this release. Readers ignore unknown fields, so a field without which a message keeps its meaning raises neither.
 * An addition that a sender must not use towards older processes raises `max`. Any other change raises both.
 */
export const wireVersions: WireVersions = { min: 19, max: 19 };
export const wireVersion: number = wireVersions.max;

/** As announcements and records state them; releases before ranges state one version, or none. */
export interface StatedVersions {
  readonly version?: number | undefined;
  readonly versionMin?: number | undefined;
}

/** The fields that state a range. */
export function statedVersions({ min, max }: WireVersions = wireVersions): StatedVersions {
  return { version: max, versionMin: min };
}

/** The highest version that both have; undefined: the processes cannot communicate. */
export function commonVersion(
  { version, versionMin = version }: StatedVersions,
  own: WireVersions = wireVersions,
): number | undefined {
  if (version === undefined || versionMin === undefined) return undefined;
  const common = Math.min(version, own.max);
  return common >= Math.max(versionMin, own.min) ? common : undefined;
}

/** In words: `17`, `17 to 19`, or `none`. */
export function describeVersions({ version, versionMin = version }: StatedVersions = statedVersions()): string {
  if (version === undefined) return 'none';
  return versionMin === version ? String(version) : `${versionMin} to ${version}`;
}
