// Sizes as users write them.

/** A size as `byteCount` reads it. */
export const byteCountPattern = /^(\d+(?:\.\d+)?)\s*(b|k|kb|kib|m|mb|mib|g|gb|gib)?$/i;
const unitBytes: Readonly<Record<string, number>> = { b: 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 };

/** '512m', '2GiB', 1048576. @throws Error that names the text */
export function byteCount(text: string | number): number {
  const match = byteCountPattern.exec(String(text).trim());
  if (match === null) throw new Error(`'${text}' is not a size: write 512m or 2g`);
  return Math.floor(Number(match[1]) * (unitBytes[(match[2] ?? 'b')[0]?.toLowerCase() ?? 'b'] ?? 1));
}
