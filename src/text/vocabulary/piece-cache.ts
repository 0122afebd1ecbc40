// Remembers the ids of short text pieces, which repeat all the time in any real text.

const entriesMax = 1 << 15;
const pieceCharsMax = 48;

/** Piece -> ids, bounded; emptied when full, because the frequent pieces are back at once. */
export class PieceCache {
  readonly #ids = new Map<string, Int32Array>();

  get(piece: string): Int32Array | undefined {
    return piece.length > pieceCharsMax ? undefined : this.#ids.get(piece);
  }

  put(piece: string, ids: Int32Array): void {
    if (piece.length > pieceCharsMax) return;
    if (this.#ids.size >= entriesMax) this.#ids.clear();
    this.#ids.set(ownCopy(piece), ids);
  }
}

// A piece is a slice of its text and would keep the whole text alive for as long as it is cached.
function ownCopy(piece: string): string {
  const units = new Array<number>(piece.length);
  for (let i = 0; i < piece.length; i++) units[i] = piece.charCodeAt(i);
  return String.fromCharCode(...units);
}
