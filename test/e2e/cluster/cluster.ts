// Clients of a cluster: streamed completions, and the state of its instances as gateways report it.
import { metric, type RunningServer } from '../server.ts';

export const model = 'kvasir-tiny-q8_0';

export interface Answer {
  readonly text: string;
  readonly tokens: number;
  readonly reason: string | undefined;
  readonly error: string | undefined;
}

/** One streamed completion: the text so far, and the whole answer. */
export class Stream {
  text = '';
  readonly answer: Promise<Answer>;
  #begun: () => void = () => {};
  /** Resolves with the first text. */
  readonly begun = new Promise<void>((resolve) => {
    this.#begun = resolve;
  });

  /** @param other fields of the request */
  constructor(gateway: RunningServer, kind: number, maxTokens: number, other: object = {}) {
    this.answer = this.#read(gateway, kind, maxTokens, other);
  }

  async #read(gateway: RunningServer, kind: number, maxTokens: number, other: object): Promise<Answer> {
    const sampled = { temperature: 0.8, seed: kind, max_tokens: maxTokens, ignore_eos: true };
    const response = await fetch(`${gateway.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        ...{ model, prompt: `Story ${kind}: once upon a time`, stream: true, ...sampled },
        ...other,
        stream_options: { include_usage: true },
      }),
    });
    let [buffer, tokens, reason, error]: [string, number, string | undefined, string | undefined] = [
      '',
      0,
      undefined,
      undefined,
    ];
    const decoder = new TextDecoder();
    for await (const bytes of response.body ?? []) {
      buffer += decoder.decode(bytes, { stream: true });
      const lines = buffer.split('\n');
      buffer = lines.pop() ?? '';
      for (const line of lines) {
        if (!line.startsWith('data: {')) continue;
        const chunk = JSON.parse(line.slice(6));
        this.text += chunk.choices?.[0]?.text ?? '';
        reason = chunk.choices?.[0]?.finish_reason ?? reason;
        tokens = chunk.usage?.completion_tokens ?? tokens;
        error = chunk.error?.message ?? error;
        if (this.text !== '') this.#begun();
      }
    }
    return { text: this.text, tokens, reason, error };
  }
}

/** Number of instances that serve. */
export async function health(gateway: RunningServer): Promise<number> {
  const { instances } = (await (await fetch(`${gateway.url}/health`)).json()) as { instances: { ready: number } };
  return instances.ready;
}

/** True if no request runs and no page is used. */
export const idle = async (gateway: RunningServer) =>
  (await metric(gateway, 'kvasir_requests_running')) === 0 && (await metric(gateway, 'kvasir_kv_pages_used')) === 0;
