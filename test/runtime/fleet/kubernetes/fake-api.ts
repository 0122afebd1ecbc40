// A server that speaks the part of the Kubernetes API that lists and watches pods, with faults on demand.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo } from 'node:net';

export interface FakePod {
  readonly name: string;
  readonly ip?: string;
  readonly port: number;
  readonly ready?: boolean;
  readonly deleting?: boolean;
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
}

export class FakeApi {
  readonly #server: Server;
  readonly #watches = new Set<ServerResponse>();
  readonly #pods = new Map<string, object>();
  #version = 100;
  /** Queries as they arrived, and their tokens. */
  readonly calls: URLSearchParams[] = [];
  readonly tokens: (string | undefined)[] = [];
  /** Faults: a status for all calls; a status for watches; pods of a page. */
  status = 200;
  watchStatus = 200;
  pageSize = 500;

  readonly #tls: { readonly key: Buffer; readonly cert: Buffer } | undefined;

  constructor(tls?: { readonly key: Buffer; readonly cert: Buffer }) {
    this.#tls = tls;
    const serve = (request: IncomingMessage, response: ServerResponse): void => this.#serve(request, response);
    this.#server = tls === undefined ? createServer(serve) : createSecureServer(tls, serve);
  }

  /** @param tls its key and its certificate; undefined: it speaks HTTP */
  static async start(tls?: { readonly key: Buffer; readonly cert: Buffer }): Promise<FakeApi> {
    const api = new FakeApi(tls);
    await new Promise<void>((resolve) => api.#server.listen(0, '127.0.0.1', resolve));
    return api;
  }

  get url(): string {
    return `${this.#tls === undefined ? 'http' : 'https'}://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  get watches(): number {
    return this.#watches.size;
  }

  async close(): Promise<void> {
    this.cut();
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** Changes a pod. @param isSent false: watches miss it */
  set(uid: string, pod: FakePod, isSent = true): void {
    const type = this.#pods.has(uid) ? 'MODIFIED' : 'ADDED';
    const object = objectOf(uid, pod, ++this.#version);
    this.#pods.set(uid, object);
    if (isSent) this.send({ type, object });
  }

  delete(uid: string, isSent = true): void {
    const object = this.#pods.get(uid);
    this.#pods.delete(uid);
    this.#version++;
    if (isSent) this.send({ type: 'DELETED', object });
  }

  /** Any event of a watch. */
  send(event: object): void {
    for (const watch of this.#watches) watch.write(`${JSON.stringify(event)}\n`);
  }

  /** The object of a pod, as events have it. */
  object(uid: string): object | undefined {
    return this.#pods.get(uid);
  }

  /** Breaks the watches. */
  cut(): void {
    for (const watch of this.#watches) watch.socket?.destroy();
  }

  #serve(request: IncomingMessage, response: ServerResponse): void {
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://api');
    this.calls.push(searchParams);
    this.tokens.push(request.headers.authorization);
    const isWatch = searchParams.has('watch');
    const status = isWatch && this.status === 200 ? this.watchStatus : this.status;
    if (status !== 200 || pathname !== '/api/v1/namespaces/models/pods') {
      response.writeHead(status === 200 ? 404 : status);
      response.end(JSON.stringify({ kind: 'Status', code: status, message: `status ${status} on demand` }));
      return;
    }
    response.writeHead(200, { 'content-type': 'application/json' });
    if (!isWatch) {
      const from = Number(searchParams.get('continue') ?? 0);
      const to = from + this.pageSize;
      const more = to < this.#pods.size ? String(to) : '';
      const metadata = { resourceVersion: String(this.#version), continue: more };
      response.end(JSON.stringify({ kind: 'PodList', metadata, items: [...this.#pods.values()].slice(from, to) }));
      return;
    }
    response.flushHeaders();
    this.#watches.add(response);
    response.on('close', () => this.#watches.delete(response));
  }
}

function objectOf(
  uid: string,
  { name, ip = '127.0.0.1', port, ready = true, deleting, labels, annotations }: FakePod,
  version: number,
) {
  return {
    metadata: {
      ...{ name, uid, resourceVersion: String(version), labels, annotations },
      ...(deleting === true && { deletionTimestamp: '2026-01-01T00:00:00Z' }),
    },
    spec: { containers: [{ ports: [{ name: 'http', containerPort: port }] }] },
    status: { podIP: ip, conditions: [{ type: 'Ready', status: ready ? 'True' : 'False' }] },
  };
}
