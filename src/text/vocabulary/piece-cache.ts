// Caches the ids of short text pieces, which repeat often in real text.

const entriesMax = 1 << 15;
const pieceCharsMax = 48;

/** Piece to ids, with a limit. A full cache is emptied: frequent pieces return quickly. */
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

// Copies a piece: a slice would keep the whole text alive while it is cached.
function ownCopy(piece: string): string {
  const units = new Array<number>(piece.length);
  for (let i = 0; i < piece.length; i++) units[i] = piece.charCodeAt(i);
  return String.fromCharCode(...units);
}
