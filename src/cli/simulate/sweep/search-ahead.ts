// Searches whose next trial depends on earlier results, on several threads: trials that may be next run ahead.

/** A function of the results of its trials alone. */
export type Search<Input, Result, Found> = (trial: (input: Input) => Promise<Result>) => Promise<Found>;

interface Trials<Input, Result> {
  run(input: Input): Promise<Result>;
  /** Equal for equal inputs. */
  keyOf(input: Input): string;
  /** Results that a trial may have, as far as the search distinguishes them. */
  readonly guesses: readonly Result[];
  /** Trials that run at once. */
  readonly atOnce: number;
}

type Known<Result> = ReadonlyMap<string, { readonly result: Result } | { readonly error: unknown }>;

/**
 * The result of the search as if its trials ran one after another: the next trial always runs, and beside it those that would follow one
 * of the guesses. An error of a trial that the search does not reach is ignored.
 */
export async function searchAhead<Input, Result, Found>(
  search: Search<Input, Result, Found>,
  { run, keyOf, guesses, atOnce }: Trials<Input, Result>,
): Promise<Found> {
  const known = new Map<string, { readonly result: Result } | { readonly error: unknown }>();
  const running = new Map<string, Promise<void>>();
  const start = (input: Input) => {
    const key = keyOf(input);
    if (running.has(key)) return;
    const settle = (outcome: { readonly result: Result } | { readonly error: unknown }) => {
      known.set(key, outcome);
      running.delete(key);
    };
    running.set(
      key,
      run(input).then(
        (result) => settle({ result }),
        (error: unknown) => settle({ error }),
      ),
    );
  };
  for (;;) {
    const next = await replay(search, keyOf, known);
    if ('found' in next) return next.found;
    const settled = known.size;
    start(next.input);
    for (const input of await following(search, { keyOf, guesses, atOnce }, known, next.input))
      if (running.size < atOnce) start(input);
    // A trial may have ended since.
    if (known.size === settled) await Promise.race(running.values());
  }
}

/** Inputs of the trials that may follow `first`, the likely ones first: less than `atOnce`. */
async function following<Input, Result, Found>(
  search: Search<Input, Result, Found>,
  { keyOf, guesses, atOnce }: Omit<Trials<Input, Result>, 'run'>,
  known: Known<Result>,
  first: Input,
): Promise<readonly Input[]> {
  const inputs: Input[] = [];
  const branches: { readonly assumed: Known<Result>; readonly input: Input }[] = [{ assumed: known, input: first }];
  for (let b = 0; b < branches.length && inputs.length < atOnce - 1; b++) {
    const { assumed, input } = branches[b];
    for (const result of guesses) {
      const further = new Map(assumed).set(keyOf(input), { result });
      const next = await replay(search, keyOf, further).catch(() => undefined);
      if (next === undefined || 'found' in next) continue;
      inputs.push(next.input);
      branches.push({ assumed: further, input: next.input });
    }
  }
  return inputs.slice(0, atOnce - 1);
}

/** Runs the search up to the first trial without a known result. @throws the error of a trial */
function replay<Input, Result, Found>(
  search: Search<Input, Result, Found>,
  keyOf: (input: Input) => string,
  known: Known<Result>,
): Promise<{ readonly found: Found } | { readonly input: Input }> {
  return new Promise((resolve, reject) => {
    const trial = (input: Input): Promise<Result> => {
      const outcome = known.get(keyOf(input));
      if (outcome === undefined) {
        resolve({ input });
        return new Promise(() => {});
      }
      return 'error' in outcome ? Promise.reject(outcome.error) : Promise.resolve(outcome.result);
    };
    search(trial).then((found) => resolve({ found }), reject);
  });
}
