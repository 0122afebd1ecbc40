// One request of the soak bench and its outcome.
import { request } from 'node:http';
import type { SoakRequest } from './traffic.ts';

export type Fate =
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
export function send(url: string, asked: SoakRequest, apiKey: string | undefined): Promise<Fate> {
  const { manner } = asked;
  const headers = {
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(asked.body)),
    ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }),
  };
  return new Promise((resolve) => {
    let left = false;
    let timer: NodeJS.Timeout | undefined;
    const end = (fate: Fate): void => {
      clearTimeout(timer);
      resolve(left ? 'cancelled' : fate);
    };
    const outgoing = request(new URL(asked.path, url), { method: 'POST', agent: false, headers }, (incoming) => {
      const status = incoming.statusCode ?? 0;
      let text = '';
      incoming.setEncoding('utf8');
      incoming.on('data', (piece: string) => {
        text += piece;
        if (manner.kind !== 'dawdles') return;
        incoming.pause();
        setTimeout(() => incoming.resume(), manner.pauseMs);
      });
      incoming.on('close', () => end(incoming.complete ? fateOf(asked, status, text) : 'lost'));
    });
    outgoing.on('error', () => end('lost'));
    if (manner.kind === 'leaves') {
      timer = setTimeout(() => {
        left = true;
        outgoing.destroy();
      }, manner.afterMs);
    }
    outgoing.end(asked.body);
  });
}

function fateOf({ bad }: SoakRequest, status: number, text: string): Fate {
  if (status === 429) return isError(text) ? 'refused' : 'lost';
  if (bad) return status >= 400 && status < 500 && isError(text) ? 'rejected' : 'lost';
  if (status !== 200) return 'lost';
  const isStream = text.startsWith('data: ');
  return isStream ? wholeStream(text) : wholeAnswer(text);
}

function wholeStream(text: string): Fate {
  return text.endsWith('data: [DONE]\n\n') && !text.includes('data: {"error"') ? 'completed' : 'lost';
}

function wholeAnswer(text: string): Fate {
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
