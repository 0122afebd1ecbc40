// How long outputs become, learned from those that ended: by kind of request, forgetting slowly.

/** Four bins for each doubling. */
const binsPerDoubling = 4;
const bins = 24 * binsPerDoubling;
/** Outputs known at most; then all count half, so that what is new tells more. */
const weightMax = 4096;
/** A kind with fewer is taken to be like all. */
const knownMin = 32;
const kindsMax = 1024;

/** A histogram of output lengths that answers for how many more tokens a request goes on. */
export class LengthDistribution {
  readonly #counts = new Float64Array(bins);
  /** (bins + 1): outputs in this bin and longer ones. */
  readonly #from = new Float64Array(bins + 1);
  #tokens = 0;

  /** Outputs learned, old ones in part. */
  get weight(): number {
    return this.#from[0];
  }

  /** 1 while nothing is known. */
  get mean(): number {
    return this.weight === 0 ? 1 : this.#tokens / this.weight;
  }

  observe(tokens: number): void {
    this.#counts[binOf(Math.max(1, tokens))]++;
    this.#tokens += tokens;
    if (this.weight + 1 > weightMax) this.#halve();
    let from = 0;
    for (let bin = bins - 1; bin >= 0; bin--) {
      from += this.#counts[bin];
      this.#from[bin] = from;
    }
  }

  /** Share of outputs with more than `tokens` tokens; 1 while nothing is known. */
  longer(tokens: number): number {
    if (this.weight === 0 || tokens <= 0) return 1;
    const at = tokens + 1;
    const bin = binOf(Math.floor(at));
    const low = lowerEnd(bin);
    const inside = Math.min(1, (at - low) / (lowerEnd(bin + 1) - low));
    return Math.max(0, this.#from[bin] - this.#counts[bin] * inside) / this.weight;
  }

  #halve(): void {
    for (let bin = 0; bin < bins; bin++) this.#counts[bin] /= 2;
    this.#tokens /= 2;
  }
}

/** Kinds are whatever tells requests apart before they run: their class, their tenant. */
export class OutputLengths {
  readonly #all = new LengthDistribution();
  readonly #kinds = new Map<string, LengthDistribution>();

  of(kind: string): LengthDistribution {
    const known = this.#kinds.get(kind);
    return known === undefined || known.weight < knownMin ? this.#all : known;
  }

  observe(kind: string, tokens: number): void {
    this.#all.observe(tokens);
    let known = this.#kinds.get(kind);
    if (known === undefined && this.#kinds.size < kindsMax) {
      known = new LengthDistribution();
      this.#kinds.set(kind, known);
    }
    known?.observe(tokens);
  }
}

/** Integers alone: the same bins on any machine. */
function binOf(tokens: number): number {
  const doubling = 31 - Math.clz32(tokens);
  const part = Math.floor(((tokens - 2 ** doubling) * binsPerDoubling) / 2 ** doubling);
  return Math.min(bins - 1, doubling * binsPerDoubling + part);
}

function lowerEnd(bin: number): number {
  const doubling = Math.floor(bin / binsPerDoubling);
  return 2 ** doubling * (1 + (bin % binsPerDoubling) / binsPerDoubling);
}
