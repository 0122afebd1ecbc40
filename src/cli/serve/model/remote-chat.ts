// Answers of a running server, for `kvasir chat --url`.
import { z } from 'zod';
import type { ChatMessage } from '../../../text/template/chat-template.ts';
import { type Answering, ContextFull } from '../../terminal/chat-session.ts';
import type { LocalSettings } from './local-generation.ts';

const modelsSchema = z.object({ data: z.array(z.object({ id: z.string() })).min(1) });
const chunkSchema = z.object({
  choices: z
    .array(z.object({ delta: z.object({ content: z.string().nullish(), reasoning_content: z.string().nullish() }) }))
    .default([]),
  error: z.object({ message: z.string() }).optional(),
});
const errorSchema = z.object({ error: z.object({ message: z.string(), code: z.string().nullish() }) });

export interface RemoteServer {
  readonly url: string;
  readonly apiKey: string | undefined;
}

export interface RemoteChat extends Answering {
  readonly model: string;
}

/**
 * @param requested id of a model; undefined: the first one
 * @throws Error in one line if the server does not answer, or does not list the model
 */
export async function openRemoteChat(
  server: RemoteServer,
  settings: LocalSettings,
  requested?: string,
): Promise<RemoteChat> {
  const response = await request(server, '/v1/models');
  if (!response.ok) throw new Error(`Cannot chat: ${server.url} answered ${response.status} to GET /v1/models`);
  const ids = modelsSchema.parse(await response.json()).data.map(({ id }) => id);
  const model = requested ?? ids[0] ?? '';
  if (!ids.includes(model))
    throw new Error(`Cannot chat with model '${model}': ${server.url} serves ${ids.join(', ')}`);
  const answer: Answering['answer'] = async (messages, signal, onText) => {
    try {
      return await streamed(server, bodyOf(model, messages, settings), signal, onText);
    } catch (error) {
      if (signal.aborted && !(error instanceof ContextFull)) return '';
      throw error;
    }
  };
  return { model, answer };
}

function bodyOf(model: string, messages: readonly ChatMessage[], settings: LocalSettings): object {
  const { maxTokens: max_tokens, temperature, topP: top_p, seed } = settings;
  return { model, messages, stream: true, max_tokens, temperature, top_p, seed };
}

async function request({ url, apiKey }: RemoteServer, path: string, init: RequestInit = {}): Promise<Response> {
  const headers: Record<string, string> = { 'content-type': 'application/json' };
  if (apiKey !== undefined) headers.authorization = `Bearer ${apiKey}`;
  return fetch(`${url.replace(/\/+$/, '')}${path}`, { ...init, headers }).catch((error: unknown) => {
    if (init.signal?.aborted) throw error;
    const cause = error instanceof Error ? (error.cause ?? error) : error;
    throw new Error(`Cannot reach ${url}: ${cause instanceof Error ? cause.message : String(cause)}`);
  });
}

async function streamed(
  server: RemoteServer,
  body: object,
  signal: AbortSignal,
  onText: (text: string) => void,
): Promise<string> {
  const init = { method: 'POST', body: JSON.stringify(body), signal };
  const response = await request(server, '/v1/chat/completions', init);
  if (!response.ok || response.body === null) throw await refusalOf(response);
  let text = '';
  let rest = '';
  let hasReasoned = false;
  const decoder = new TextDecoder();
  try {
    for await (const bytes of response.body) {
      const lines = (rest + decoder.decode(bytes as Uint8Array, { stream: true })).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        if (!line.startsWith('data: {')) continue;
        const { choices, error } = chunkSchema.parse(JSON.parse(line.slice('data: '.length)));
        if (error !== undefined) throw new Error(error.message);
        const { content, reasoning_content: reasoning } = choices[0]?.delta ?? {};
        if (reasoning) onText(reasoning);
        hasReasoned ||= Boolean(reasoning);
        if (!content) continue;
        // Reasoning is shown, and no part of the answer that later turns repeat.
        if (hasReasoned && text === '') onText('\n\n');
        text += content;
        onText(content);
      }
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
  return text;
}

async function refusalOf(response: Response): Promise<Error> {
  const { data } = errorSchema.safeParse(await response.json().catch(() => undefined));
  if (data === undefined) return new Error(`Cannot chat: the server answered ${response.status}`);
  const { message, code } = data.error;
  return code === 'context_length_exceeded' ? new ContextFull(message) : new Error(message);
}
