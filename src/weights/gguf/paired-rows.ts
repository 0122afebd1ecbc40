// Undoes the row order that GGUF converters give q and k of llama files: neighbours back to halves, stored bytes untouched.
import type { RandomAccessFile } from '../random-access-file.ts';

/** How a tensor's rows are paired inside each head. */
export interface PairedRows {
  readonly headRows: number;
  readonly rowBytes: number;
}

/**
 * Reads bytes of a tensor as if its rows were in rotate-half order.
 * Row h*d + s*(d/2) + j (half s, pair j of head h, d rows a head) is stored as row h*d + 2j + s.
 * @param offset of the tensor in the file
 * @param into receives bytes [byteStart, byteStart + into.byteLength) of the reordered tensor
 */
export function readPairedRows(
  file: RandomAccessFile,
  offset: number,
  paired: PairedRows,
  byteStart: number,
  into: Uint8Array,
): void {
  const { headRows, rowBytes } = paired;
  const headBytes = headRows * rowBytes;
  const byteEnd = byteStart + into.byteLength;
  // One head at a time: a few hundred kilobytes, whatever the tensor's size.
  const stored = new Uint8Array(into.byteLength > 0 ? headBytes : 0);
  for (let head = Math.floor(byteStart / headBytes); head * headBytes < byteEnd; head++) {
    const headStart = head * headBytes;
    file.readInto(offset + headStart, stored);
    for (let row = 0; row < headRows; row++) {
      const rowStart = headStart + row * rowBytes;
      const from = Math.max(rowStart, byteStart);
      const to = Math.min(rowStart + rowBytes, byteEnd);
      if (from >= to) continue;
      const source = storedRow(row, headRows) * rowBytes - rowStart;
      into.set(stored.subarray(source + from, source + to), from - byteStart);
    }
  }
}

function storedRow(row: number, headRows: number): number {
  const half = headRows / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}
