// What a run with more instances has left on SSD: they may come again, so it is named and not removed.
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';

/** What a file takes of the disk is counted so, whatever its blocks are. */
const statBlockBytes = 512;

/** One line, or undefined where there is nothing. @param instances that there are now */
export function leftBehind(ssd: string, instances: number): string | undefined {
  const left = namesIn(ssd).filter((name) => {
    const index = /^instance-(\d+)(\.\w+)?$/.exec(name)?.[1];
    return index !== undefined && Number(index) >= instances;
  });
  if (left.length === 0) return undefined;
  const bytes = left.reduce((sum, name) => sum + diskBytes(join(ssd, name)), 0);
  const megabytes = (bytes / 1e6).toFixed(0);
  const names = left.toSorted().join(', ');
  return `A run with more than ${instances} instances left ${megabytes} MB at ${ssd}: ${names}: found again with as many, or to be removed`;
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
