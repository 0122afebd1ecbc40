// Distributions of output lengths, learned from finished requests by class, with slow decay.

/** Bins for each doubling of the length. */
const binsPerDoubling = 4;
const bins = 24 * binsPerDoubling;
/** Maximum weight of all observations: then the weights are halved, so that new observations count more. */
const weightMax = 4096;
/** A class with fewer observations uses the distribution of all requests. */
const observationsMin = 32;
const classesMax = 1024;

/** A histogram of output lengths. */
export class LengthDistribution {
  readonly #counts = new Float64Array(bins);
  /** (bins + 1): weight of this bin and of all longer ones. */
  readonly #from = new Float64Array(bins + 1);
  #tokens = 0;

  /** Weight of all observations. */
  get weight(): number {
    return this.#from[0];
  }

  /** 1 before the first observation. */
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

  /** Share of outputs with more than `tokens` tokens; 1 before the first observation. */
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

/** Classes of requests are known before they run: by SLO class and tenant. */
export class OutputLengths {
  readonly #all = new LengthDistribution();
  readonly #classes = new Map<string, LengthDistribution>();

  of(outputClass: string): LengthDistribution {
    const known = this.#classes.get(outputClass);
    return known === undefined || known.weight < observationsMin ? this.#all : known;
  }

  observe(outputClass: string, tokens: number): void {
    this.#all.observe(tokens);
    let known = this.#classes.get(outputClass);
    if (known === undefined && this.#classes.size < classesMax) {
      known = new LengthDistribution();
      this.#classes.set(outputClass, known);
    }
    known?.observe(tokens);
  }
}

/** Integer arithmetic: the same bins on every machine. */
function binOf(tokens: number): number {
  const doubling = 31 - Math.clz32(tokens);
  const part = Math.floor(((tokens - 2 ** doubling) * binsPerDoubling) / 2 ** doubling);
  return Math.min(bins - 1, doubling * binsPerDoubling + part);
}

function lowerEnd(bin: number): number {
  const doubling = Math.floor(bin / binsPerDoubling);
  return 2 ** doubling * (1 + (bin % binsPerDoubling) / binsPerDoubling);
}
