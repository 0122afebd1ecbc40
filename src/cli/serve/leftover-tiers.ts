// SSD tiers of an earlier run with more instances. They are reported and kept, since a later run may use them.
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';

/** Unit of allocated file sizes, for any block size of the file system. */
const statBlockBytes = 512;

/** One line, or undefined without leftover tiers. @param instances of this run */
export function leftoverTiers(ssd: string, instances: number): string | undefined {
  const left = namesIn(ssd).filter((name) => {
    const index = /^instance-(\d+)(\.\w+)?$/.exec(name)?.[1];
    return index !== undefined && Number(index) >= instances;
  });
  if (left.length === 0) return undefined;
  const bytes = left.reduce((sum, name) => sum + diskBytes(join(ssd, name)), 0);
  const megabytes = (bytes / 1e6).toFixed(0);
  const names = left.toSorted().join(', ');
  return `An earlier run with more than ${instances} instances left ${megabytes} MB at ${ssd}: ${names}: run that many again to use them, or remove them`;
}

function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function diskBytes(path: string): number {
  try {
    const stat = statSync(path);
    const within = stat.isDirectory() ? namesIn(path) : [];
    return stat.blocks * statBlockBytes + within.reduce((sum, name) => sum + diskBytes(join(path, name)), 0);
  } catch {
    return 0;
  }
}
