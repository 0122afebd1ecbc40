// `kvasir top`: shows the instances of a server, refreshed once a second.
import { setTimeout as sleep } from 'node:timers/promises';
import { Command } from 'commander';
import { z } from 'zod';
import { readOptions } from '../options/options.ts';
import { numeric } from '../options/schema-parts.ts';
import { type ClusterView, clusterViewSchema, topScreen } from '../serve/host/instance-rows.ts';
import { stopSignal } from '../serve/stop-signal.ts';

const schema = z.object({
  url: z
    .string()
    .regex(/^https?:\/\/[^\s]+$/, 'write http://HOST:PORT')
    .default('http://127.0.0.1:8000'),
  apiKey: z.string().optional(),
  interval: numeric(z.number().min(0.1).max(3600)).default(1),
  once: z.boolean().default(false),
  json: z.boolean().default(false),
});

/** q, and Ctrl-C and Ctrl-D as a terminal in raw mode sends them. */
const quitKeys = ['q', 'Q', '\u0003', '\u0004'];
const answerMsMax = 10_000;
const clearScreen = '\u001b[2J\u001b[H';

export function topCommand(): Command {
  return new Command('top')
    .option('--url <url>', 'Query the server at this address (default: http://127.0.0.1:8000)')
    .option('--api-key <key>', 'Send this key, if the server requires one')
    .option('--interval <seconds>', 'Refresh at this interval (default: 1)')
    .option('--once', 'Print once and exit')
    .option('--json', 'Print the status as one JSON object per line')
    .action(async (flags: Record<string, unknown>) => top(readOptions(schema, flags)));
}

async function top({ url, apiKey, interval, once, json }: z.infer<typeof schema>): Promise<void> {
  const stopped = new AbortController();
  void stopSignal().then(() => stopped.abort());
  const restore = once || json ? () => {} : quitAtKey(process.stdin, () => stopped.abort());
  let before: ClusterView | undefined;
  try {
    while (!stopped.signal.aborted) {
      const view = await query(url, apiKey);
      if (json) console.log(JSON.stringify(view));
      else show(view, before);
      if (once) return;
      before = view;
      await sleep(interval * 1000, undefined, { signal: stopped.signal }).catch(() => {});
    }
  } finally {
    restore();
  }
}

/** @throws Error in one line when the server does not answer */
async function query(url: string, apiKey: string | undefined): Promise<ClusterView> {
  const headers: Record<string, string> = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
  const path = `${url.replace(/\/+$/, '')}/api/cluster`;
  const response = await fetch(path, { headers, signal: AbortSignal.timeout(answerMsMax) }).catch((error: unknown) => {
    const cause = error instanceof Error ? (error.cause ?? error) : error;
    throw new Error(`Cannot query ${url}: ${cause instanceof Error ? cause.message : String(cause)}`);
  });
  if (!response.ok) throw new Error(`Cannot query ${url}: the server answered ${response.status} to GET /api/cluster`);
  return clusterViewSchema.parse(await response.json());
}

function show(view: ClusterView, before: ClusterView | undefined): void {
  if (process.stdout.isTTY) process.stdout.write(clearScreen);
  for (const line of topScreen(view, before, process.stdout.columns ?? Number.POSITIVE_INFINITY)) console.log(line);
}

type Keyboard = Pick<NodeJS.ReadStream, 'isTTY' | 'setRawMode' | 'on' | 'off' | 'pause'>;

/** Calls `quit` at the key q, and at Ctrl-C, which a terminal in raw mode sends as a character. Returns what restores the terminal. */
export function quitAtKey(keyboard: Keyboard, quit: () => void): () => void {
  if (!keyboard.isTTY) return () => {};
  const onKeys = (keys: Buffer): void => {
    if (quitKeys.some((key) => keys.includes(key))) quit();
  };
  keyboard.setRawMode(true);
  keyboard.on('data', onKeys);
  return () => {
    keyboard.off('data', onKeys);
    keyboard.setRawMode(false);
    keyboard.pause();
  };
}
