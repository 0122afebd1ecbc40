// `kvasir bench http`: runs rows against an endpoint.
import { type Endpoint, firstModel, timedCompletion } from './client.ts';
import { randomPrompts } from './prompts.ts';
import { type RowSizes, rows } from './rows.ts';

export interface HttpBenchOptions {
  readonly url: string;
  /** Undefined: the first model that the endpoint lists. */
  readonly model?: string | undefined;
  readonly apiKey?: string | undefined;
  readonly rows: readonly string[];
  readonly sizes: RowSizes;
  /** Called as rows end. */
  readonly onRow?: (name: string, row: object) => void;
  /** Milliseconds of a steady clock; default: `performance.now`. */
  readonly now?: () => number;
}

export interface HttpBenchReport {
  readonly url: string;
  readonly model: string;
  readonly sizes: RowSizes;
  readonly rows: Readonly<Record<string, object>>;
}

const warmUpPromptTokens = 16;
const warmUpOutputTokens = 2;

export const httpRowNames: readonly string[] = Object.keys(rows);

/** @throws Error naming the failing row or endpoint */
export async function benchHttp(options: HttpBenchOptions): Promise<HttpBenchReport> {
  const { url, apiKey, sizes } = options;
  const model = options.model ?? (await firstModel({ url, apiKey }));
  const endpoint: Endpoint = { url, model, apiKey, now: options.now ?? (() => performance.now()) };
  await warmUp(endpoint, randomPrompts.take(warmUpPromptTokens));
  const results: Record<string, object> = {};
  for (const name of options.rows) {
    const row = await rows[name]?.({ endpoint, prompts: randomPrompts, sizes });
    if (row === undefined) throw new Error(`Cannot bench row '${name}': the rows are ${httpRowNames.join(', ')}`);
    results[name] = row;
    options.onRow?.(name, row);
  }
  return { url, model, sizes, rows: results };
}

/** Sends one untimed request: the first request of a process is slower, and its refusal ends the bench early. */
async function warmUp(endpoint: Endpoint, prompt: readonly number[]): Promise<void> {
  const { complete, status } = await timedCompletion(endpoint, { prompt, maxTokens: warmUpOutputTokens });
  if (!complete) {
    throw new Error(
      `Cannot bench ${endpoint.url}: a completion of ${warmUpOutputTokens} tokens failed: status ${status ?? 'missing'}`,
    );
  }
}
