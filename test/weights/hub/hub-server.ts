// A server of the hub's protocol from memory: it counts requests and misbehaves as a test requires.
import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface ServedRepository {
  readonly commit: string;
  readonly files: Readonly<Record<string, Uint8Array | string>>;
}

export interface SeenRequest {
  readonly path: string;
  readonly range: string | undefined;
  readonly authorization: string | undefined;
}

/** Replaces the server's own response when it returns true. `sent` counts the earlier requests of this path. */
export type Misbehaviour = (
  request: SeenRequest,
  response: ServerResponse,
  sent: number,
  content: Buffer | undefined,
) => boolean;

export interface HubServer {
  readonly url: string;
  readonly repositories: Map<string, ServedRepository>;
  /** Requests in order. */
  readonly seen: SeenRequest[];
  misbehave: Misbehaviour;
  /** Changes to the entries of the file list, by path. */
  readonly listed: Map<string, object>;
  /** Files of at least this size count as large and have a sha256. */
  largeBytes: number;
  ranges: boolean;
  /** Requests for file contents. */
  fetched(): string[];
  close(): Promise<void>;
}

export const commitA = 'a'.repeat(40);
export const commitB = 'b'.repeat(40);

export function sha256(content: Uint8Array | string): string {
  return createHash('sha256').update(content).digest('hex');
}

export function gitSha1(content: Uint8Array | string): string {
  const bytes = Buffer.from(content);
  return createHash('sha1').update(`blob ${bytes.byteLength}\0`).update(bytes).digest('hex');
}

export async function startHubServer(repositories: Record<string, ServedRepository>): Promise<HubServer> {
  const hub = {
    url: '',
    repositories: new Map(Object.entries(repositories)),
    seen: [] as SeenRequest[],
    misbehave: (() => false) as Misbehaviour,
    listed: new Map<string, object>(),
    largeBytes: 1000,
    ranges: true,
    fetched: () => hub.seen.filter(({ path }) => path.startsWith('/cdn/')).map(({ path }) => path),
    close: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
  const server = createServer((request, response) => answer(hub, request, response));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  hub.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return hub;
}

function answer(hub: HubServer, { url = '', headers }: IncomingMessage, response: ServerResponse): void {
  const { pathname: path, searchParams } = new URL(url, hub.url);
  const request = { path: decodeURIComponent(path), range: headers.range, authorization: headers.authorization };
  const sent = hub.seen.filter((other) => other.path === request.path).length;
  hub.seen.push(request);
  const found = locate(hub, request.path);
  if (hub.misbehave(request, response, sent, found?.content)) return;
  const [, id = '', page = '', revision = ''] =
    /^\/api\/models\/([^/]+\/[^/]+)\/(revision|tree)\/(.+)$/.exec(request.path) ?? [];
  const repository = hub.repositories.get(id) ?? found?.repository;
  if (repository === undefined) refuse(response, 404, 'RepoNotFound');
  else if (page !== '' && revision !== 'main' && revision !== repository.commit)
    refuse(response, 404, 'RevisionNotFound');
  else if (page === 'revision') sendJson(response, { id, sha: repository.commit, siblings: [] });
  else if (page === 'tree') sendTree(hub, repository, response, Number(searchParams.get('cursor') ?? 0), path);
  else if (found === undefined) refuse(response, 404, 'EntryNotFound');
  else if (path.startsWith('/cdn/')) sendContent(hub, found.content, request.range, response);
  else redirect(hub, found.content, repository.commit, path, response);
}

/** Redirects to the content store on another host, as the hub does. */
function redirect(hub: HubServer, content: Buffer, commit: string, path: string, response: ServerResponse): void {
  const [hash, large] = hashOf(hub, content);
  response.setHeader('x-repo-commit', commit);
  if (large) response.setHeader('x-linked-size', content.byteLength).setHeader('x-linked-etag', `"${hash}"`);
  else response.setHeader('etag', `"${hash}"`);
  response.writeHead(302, { location: `${hub.url.replace('127.0.0.1', 'localhost')}/cdn${path}` }).end();
}

function locate(hub: HubServer, path: string): { repository: ServedRepository; content: Buffer } | undefined {
  const [, id = '', file = ''] = /^(?:\/cdn)?\/([^/]+\/[^/]+)\/resolve\/[^/]+\/(.+)$/.exec(path) ?? [];
  const repository = hub.repositories.get(id);
  const content = repository?.files[file];
  return repository === undefined || content === undefined ? undefined : { repository, content: Buffer.from(content) };
}

function hashOf(hub: HubServer, content: Buffer): [string, boolean] {
  return content.byteLength >= hub.largeBytes ? [sha256(content), true] : [gitSha1(content), false];
}

/** Two entries a page, so that longer lists have several pages. */
function sendTree(
  hub: HubServer,
  repository: ServedRepository,
  response: ServerResponse,
  from: number,
  path: string,
): void {
  const entries = Object.entries(repository.files).map(([name, text]) => {
    const content = Buffer.from(text);
    const [hash, large] = hashOf(hub, content);
    const lfs = large ? { lfs: { oid: hash, size: content.byteLength, pointerSize: 130 } } : {};
    const own = { type: 'file', path: name, size: content.byteLength, oid: large ? '0'.repeat(40) : hash, ...lfs };
    return { ...own, ...hub.listed.get(name) };
  });
  const all = [{ type: 'directory', path: 'sub', oid: '1'.repeat(40), size: 0 }, ...entries];
  if (from + 2 < all.length)
    response.setHeader('link', `<${hub.url}${path}?recursive=true&cursor=${from + 2}>; rel="next"`);
  sendJson(response, all.slice(from, from + 2));
}

function sendContent(hub: HubServer, content: Buffer, range: string | undefined, response: ServerResponse): void {
  const start = Number(/^bytes=(\d+)-$/.exec(range ?? '')?.[1] ?? 0);
  response.setHeader('etag', '"tag-of-the-store"');
  if (!hub.ranges || range === undefined) {
    response.writeHead(200, { 'content-length': content.byteLength }).end(content);
  } else if (start >= content.byteLength) {
    response.writeHead(416).end();
  } else {
    const rest = content.subarray(start);
    const contentRange = `bytes ${start}-${content.byteLength - 1}/${content.byteLength}`;
    response.writeHead(206, { 'content-length': rest.byteLength, 'content-range': contentRange }).end(rest);
  }
}

function sendJson(response: ServerResponse, body: unknown): void {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

export function refuse(
  response: ServerResponse,
  status: number,
  code = '',
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { ...(code === '' ? {} : { 'x-error-code': code }), ...headers }).end('{"error":"no"}');
}

/** Sends `bytes` of the content, with the full length in the header, then cuts the connection. */
export function cutAfter(response: ServerResponse, content: Buffer, start: number, bytes: number): void {
  const headers: Record<string, string | number> = { 'content-length': content.byteLength - start };
  if (start > 0) headers['content-range'] = `bytes ${start}-${content.byteLength - 1}/${content.byteLength}`;
  response.writeHead(start > 0 ? 206 : 200, headers);
  response.write(content.subarray(start, start + bytes), () => response.socket?.end());
}
