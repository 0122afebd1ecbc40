// One request of the soak bench and its outcome.
import { request } from 'node:http';
import type { SoakRequest } from './traffic.ts';

export type RequestOutcome =
  | 'completed'
  /** Cancelled by this client on purpose. */
  | 'cancelled'
  /** 429: the queue was full. */
  | 'refused'
  /** 4xx for a bad request. */
  | 'rejected'
  /** No answer, a broken one, or an unexpected one. */
  | 'lost';

/** Never rejects. */
export function send(url: string, sent: SoakRequest, apiKey: string | undefined): Promise<RequestOutcome> {
  const { client } = sent;
  const headers = {
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(sent.body)),
    ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }),
  };
  return new Promise((resolve) => {
    let isCancelled = false;
    let timer: NodeJS.Timeout | undefined;
    const end = (outcome: RequestOutcome): void => {
      clearTimeout(timer);
      resolve(isCancelled ? 'cancelled' : outcome);
    };
    const outgoing = request(new URL(sent.path, url), { method: 'POST', agent: false, headers }, (incoming) => {
      const status = incoming.statusCode ?? 0;
      let text = '';
      incoming.setEncoding('utf8');
      incoming.on('data', (piece: string) => {
        text += piece;
        if (client.kind !== 'readsSlowly') return;
        incoming.pause();
        setTimeout(() => incoming.resume(), client.pauseMs);
      });
      incoming.on('close', () => end(incoming.complete ? outcomeOf(sent, status, text) : 'lost'));
    });
    outgoing.on('error', () => end('lost'));
    if (client.kind === 'cancels') {
      timer = setTimeout(() => {
        isCancelled = true;
        outgoing.destroy();
      }, client.afterMs);
    }
    outgoing.end(sent.body);
  });
}

function outcomeOf({ bad }: SoakRequest, status: number, text: string): RequestOutcome {
  if (status === 429) return isError(text) ? 'refused' : 'lost';
  if (bad) return status >= 400 && status < 500 && isError(text) ? 'rejected' : 'lost';
  if (status !== 200) return 'lost';
  const isStream = /^(data)?: /.test(text);
  return isStream ? streamOutcome(text) : bodyOutcome(text);
}

function streamOutcome(text: string): RequestOutcome {
  return text.endsWith('data: [DONE]\n\n') && !text.includes('data: {"error"') ? 'completed' : 'lost';
}

function bodyOutcome(text: string): RequestOutcome {
  const { choices, usage } = parsed(text) as { choices?: unknown[]; usage?: unknown };
  return Array.isArray(choices) && choices.length > 0 && usage !== undefined ? 'completed' : 'lost';
}

function isError(text: string): boolean {
  const { error } = parsed(text) as { error?: { message?: unknown } };
  return typeof error?.message === 'string';
}

function parsed(text: string): object {
  try {
    const json: unknown = JSON.parse(text);
    return typeof json === 'object' && json !== null ? json : {};
  } catch {
    return {};
  }
}
