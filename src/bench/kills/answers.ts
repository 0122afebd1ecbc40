// Streamed completions over HTTP with known texts, and their outcomes.

export type OutcomeKind =
  /** The complete expected text. */
  | 'right'
  /** A different or truncated text without an error. */
  | 'wrong'
  /** 429 */
  | 'refused'
  /** A reported failure. */
  | 'failed';

export interface Outcome {
  readonly kind: OutcomeKind;
  /** Tokens of a correct answer. */
  readonly tokens: number;
  /** The message of a failure or unexpected status. */
  readonly why?: string | undefined;
}

export interface KnownRequest {
  readonly kind: number;
  readonly maxTokens: number;
}

interface Chunk {
  readonly choices?: readonly { readonly text?: string; readonly finish_reason?: string | null }[];
  readonly error?: { readonly message: string };
}

interface Answer {
  readonly status: number;
  readonly text: string;
  readonly finished: boolean;
  readonly error: string | undefined;
}

/** A server and its model id. */
export interface Target {
  readonly url: string;
  readonly model: string;
}

/** Sends a request. Its output is the same on every instance, since its random numbers depend on its seed alone. */
export async function complete({ url, model }: Target, { kind, maxTokens }: KnownRequest): Promise<Answer> {
  const prompt =
    `Story ${kind}: once upon a time, in a house by the sea, there lived a sailor counting to ${kind * kind}. `.repeat(
      3,
    );
  const sampling = { temperature: 0.8, seed: kind, max_tokens: maxTokens, ignore_eos: true, stream: true };
  let [text, finished, error, rest]: [string, boolean, string | undefined, string] = ['', false, undefined, ''];
  try {
    const response = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model, prompt, ...sampling }),
    });
    if (response.status !== 200) return { status: response.status, text, finished, error: await response.text() };
    const decoder = new TextDecoder();
    for await (const bytes of response.body ?? []) {
      rest += decoder.decode(bytes, { stream: true });
      const lines = rest.split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        if (!line.startsWith('data: {')) continue;
        const chunk = JSON.parse(line.slice('data: '.length)) as Chunk;
        text += chunk.choices?.[0]?.text ?? '';
        finished ||= typeof chunk.choices?.[0]?.finish_reason === 'string';
        error = chunk.error?.message ?? error;
      }
    }
    return { status: 200, text, finished, error };
  } catch (thrown) {
    return { status: 0, text, finished: false, error: thrown instanceof Error ? thrown.message : String(thrown) };
  }
}

export function judge(
  { status, text, finished, error }: Answer,
  expected: string,
  { maxTokens }: KnownRequest,
): Outcome {
  if (status === 429) return { kind: 'refused', tokens: 0 };
  // The text before a failure must be correct too.
  if (!expected.startsWith(text)) return { kind: 'wrong', tokens: 0, why: `'${text.slice(0, 60)}'` };
  if (status !== 200 || error !== undefined) return { kind: 'failed', tokens: 0, why: `${status}: ${error}` };
  return finished && text === expected
    ? { kind: 'right', tokens: maxTokens }
    : { kind: 'wrong', tokens: 0, why: 'cut short' };
}
