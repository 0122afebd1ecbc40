// Lists and watches the pods of a label selector over the Kubernetes API, for as long as it is open.
import { readFile } from 'node:fs/promises';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { setTimeout as pause } from 'node:timers/promises';
import { z } from 'zod';
import { type PodChange, type PodEffect, PodSet } from '../../../core/fleet/pod-set.ts';
import { oneLine } from '../../../util/one-line.ts';
import { reasonOf } from '../reason-of.ts';
import { type EnginePod, podSchema, readPod } from './engine-pod.ts';

export interface KubernetesApi {
  readonly url: string;
  /** Read before each call, since Kubernetes renews it; undefined: calls carry no token. */
  readonly tokenFile?: string | undefined;
  /** Of the authority of the API's certificate; undefined: those that Node.js trusts. */
  readonly caFile?: string | undefined;
}

export interface PodSelector {
  readonly api: KubernetesApi;
  readonly namespace: string;
  /** A label selector, for example `app=vllm,tier!=test`. */
  readonly selector: string;
  /** A number, or the name of a container's port; undefined: the first port of the pod. */
  readonly port?: number | string | undefined;
}

export interface PodWatcherTimes {
  /** Pauses after failures double from the one to the other. */
  readonly pauseMs: { readonly least: number; readonly most: number };
  /** The API ends a watch after this time, and one that it does not end is closed a little later. */
  readonly watchMs: number;
}

export interface PodListener {
  onPod(effect: PodEffect<EnginePod>): void;
  log(message: string): void;
}

const times: PodWatcherTimes = { pauseMs: { least: 1_000, most: 30_000 }, watchMs: 240_000 };
/** Time for an answer, and for the end of a watch after its time. */
const timeoutMs = 15_000;
const podsPerPage = 500;
/** Longer lines, and longer lists, are refused. */
const charactersMax = 2 ** 26;
const gone = 410;

const listSchema = z.object({
  metadata: z.object({ resourceVersion: z.string(), continue: z.string().nullish() }),
  items: z.array(podSchema),
});
const bookmarkSchema = z.object({ metadata: z.object({ resourceVersion: z.string() }) });
const eventSchema = z.object({ type: z.string(), object: z.unknown() });
const statusSchema = z.object({ code: z.number().optional(), message: z.string().optional() });

/** The API has forgotten the version: the pods are to be listed anew. */
class Expired extends Error {}

export class PodWatcher {
  readonly #selector: PodSelector;
  readonly #listener: PodListener;
  readonly #times: PodWatcherTimes;
  readonly #pods = new PodSet<EnginePod>();
  readonly #closing = new AbortController();
  /** The first list has arrived, or could not be had. */
  readonly settled: Promise<void>;
  #failures = 0;
  #reported: string | undefined;

  constructor(selector: PodSelector, listener: PodListener, own: PodWatcherTimes = times) {
    this.#selector = selector;
    this.#listener = listener;
    this.#times = own;
    this.settled = new Promise((resolve) => void this.#run(resolve));
  }

  close(): void {
    this.#closing.abort();
  }

  /** While the API does not answer, the engines that are known stay. */
  async #run(settle: () => void): Promise<void> {
    const { signal } = this.#closing;
    while (!signal.aborted) {
      try {
        if (this.#pods.version === undefined) await this.#list();
        settle();
        await this.#watch();
      } catch (error) {
        settle();
        if (signal.aborted) return;
        if (error instanceof Expired) this.#pods.expired();
        this.#report(reasonOf(error));
      }
      await this.#pause();
    }
  }

  #report(why: string): void {
    this.#failures++;
    if (why === this.#reported) return;
    this.#reported = why;
    const { namespace, selector } = this.#selector;
    this.#listener.log(`Cannot watch the pods ${selector} of the namespace ${namespace}: ${why}`);
  }

  #recovered(): void {
    this.#failures = 0;
    this.#reported = undefined;
  }

  /** None after an answer without a failure. */
  async #pause(): Promise<void> {
    if (this.#failures === 0) return;
    const { least, most } = this.#times.pauseMs;
    const pauseMs = Math.min(most, least * 2 ** (this.#failures - 1)) * (0.75 + Math.random() / 4);
    await pause(pauseMs, undefined, { ref: false, signal: this.#closing.signal }).catch(() => undefined);
  }

  async #list(): Promise<void> {
    const pods: EnginePod[] = [];
    let next: string | undefined;
    for (;;) {
      const query = { limit: String(podsPerPage), ...(next !== undefined && { continue: next }) };
      const response = await this.#get(query);
      const text = await readAll(response);
      const { metadata, items } = listSchema.parse(JSON.parse(text));
      pods.push(...items.map((item) => readPod(item, this.#selector.port)));
      next = metadata.continue || undefined;
      if (next !== undefined) continue;
      this.#apply(this.#pods.listed(pods, metadata.resourceVersion));
      return;
    }
  }

  /** Returns when the API ends the watch. */
  async #watch(): Promise<void> {
    const { watchMs } = this.#times;
    const startedMs = performance.now();
    const response = await this.#get({
      ...{ watch: '1', allowWatchBookmarks: 'true', resourceVersion: this.#pods.version ?? '' },
      timeoutSeconds: String(Math.ceil(watchMs / 1000)),
    });
    // Without it a connection that breaks without a word would be waited for forever.
    const timer = setTimeout(() => response.destroy(new Error('the watch does not end')), watchMs + timeoutMs);
    try {
      for await (const line of linesOf(response)) {
        this.#apply(this.#pods.changed(readChange(line, this.#selector.port)));
        this.#recovered();
      }
    } finally {
      clearTimeout(timer);
      response.destroy();
      // Without an event too: else the next outage would not be logged.
      if (performance.now() - startedMs >= this.#times.pauseMs.most) this.#recovered();
    }
    // An API that ends every watch at once is not asked without a pause.
    if (performance.now() - startedMs < this.#times.pauseMs.least) this.#failures = Math.max(this.#failures, 1);
  }

  #apply(effects: readonly PodEffect<EnginePod>[]): void {
    if (this.#closing.signal.aborted) return;
    for (const effect of effects) this.#listener.onPod(effect);
  }

  /** @throws Expired, or Error in one line, unless the API answers 200 */
  async #get(query: Readonly<Record<string, string>>): Promise<IncomingMessage> {
    const { api, namespace, selector } = this.#selector;
    const url = new URL(`${api.url.replace(/\/$/, '')}/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`);
    for (const [name, value] of Object.entries({ labelSelector: selector, ...query }))
      url.searchParams.set(name, value);
    const token = api.tokenFile === undefined ? undefined : (await readFile(api.tokenFile, 'utf8')).trim();
    const ca = api.caFile === undefined ? undefined : await readFile(api.caFile);
    const { signal } = this.#closing;
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const headers = { accept: 'application/json', ...(token !== undefined && { authorization: `Bearer ${token}` }) };
      const call =
        url.protocol === 'https:'
          ? httpsRequest(url, { headers, signal, ...(ca !== undefined && { ca }) })
          : httpRequest(url, { headers, signal });
      const timer = setTimeout(() => call.destroy(new Error('the API does not answer')), timeoutMs);
      call.on('close', () => clearTimeout(timer));
      call.on('error', reject);
      call.on('response', (answer) => {
        clearTimeout(timer);
        resolve(answer);
      });
      call.end();
    });
    if (response.statusCode === 200) return response;
    const reason = await readAll(response);
    if (response.statusCode === gone) throw new Expired('the API has forgotten the version of the pods');
    throw new Error(`the API answers ${response.statusCode}: ${messageIn(reason)}`);
  }
}

/** @throws Expired if the event says that the version is gone, Error in one line if it is another error */
function readChange(line: string, port: PodSelector['port']): PodChange<EnginePod> {
  const { type, object } = eventSchema.parse(JSON.parse(line));
  if (type === 'BOOKMARK') {
    return { kind: 'bookmark', version: bookmarkSchema.parse(object).metadata.resourceVersion };
  }
  // After any error in a watch its version is not relied on.
  if (type === 'ERROR')
    throw new Expired(`the watch ended: ${statusSchema.parse(object).message ?? 'without a reason'}`);
  return { kind: type === 'DELETED' ? 'deleted' : 'stored', pod: readPod(podSchema.parse(object), port) };
}

async function readAll(response: IncomingMessage): Promise<string> {
  response.setEncoding('utf8');
  response.setTimeout(timeoutMs, () => response.destroy(new Error('the answer does not end')));
  let text = '';
  for await (const part of response as AsyncIterable<string>) {
    text += part;
    if (text.length > charactersMax) throw new Error('the answer is too long');
  }
  return text;
}

async function* linesOf(response: IncomingMessage): AsyncGenerator<string> {
  response.setEncoding('utf8');
  let rest = '';
  for await (const part of response as AsyncIterable<string>) {
    const lines = (rest + part).split('\n');
    rest = lines.pop() ?? '';
    if (rest.length > charactersMax) throw new Error('a line of the watch is too long');
    for (const line of lines) if (line.trim() !== '') yield line;
  }
}

function messageIn(body: string): string {
  try {
    return statusSchema.parse(JSON.parse(body)).message ?? '';
  } catch {
    return oneLine(body, 200);
  }
}
