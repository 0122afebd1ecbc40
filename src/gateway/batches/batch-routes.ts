// The routes of files and batches.
import type { Context, Hono } from 'hono';
import { type Forwarding, forwardedCaller, forwardedCancel, type Listed } from '../forwarding/forwarding.ts';
import type { GatewayIds } from '../forwarding/gateway-ids.ts';
import { readBytes, readJson } from '../http/body.ts';
import { badField } from '../http/errors.ts';
import { type Env, refuseMethod } from '../http/route-context.ts';
import { Batches, type BatchRun } from './batches.ts';
import { describeFile, FileStore, type Storage } from './file-store.ts';

/** Limit of all files together, as a multiple of the largest body. */
const bodiesMax = 16;
const listMax = 100;
const listDefault = 20;

interface BatchSettings {
  readonly bodyBytesMax: number;
  /** Aborted when the server stops; running batch requests are cancelled. */
  readonly stopping: AbortSignal;
  /** Undefined: files and batches are lost when the process exits. */
  readonly storage: Storage | undefined;
  readonly ids: GatewayIds;
  readonly forwarding: Forwarding;
}

/** @param run runs the requests */
export function addBatchRoutes(app: Hono<Env>, run: BatchRun, settings: BatchSettings): void {
  const { bodyBytesMax, stopping, storage, ids, forwarding } = settings;
  const files = new FileStore(bodiesMax * bodyBytesMax, ids, within(storage, 'files'));
  addFileRoutes(app, files, settings);
  const batches = new Batches({ ...run, files, ids, stopping }, within(storage, 'batches'));
  const [all, one, cancel] = ['/v1/batches', '/v1/batches/:id', '/v1/batches/:id/cancel'];
  app.use('/v1/batches/:id/*', forwarding.byId);
  app.post(all, async (c) => {
    const json = await readJson(c.req.raw, bodyBytesMax);
    // The gateway that has the input runs the batch.
    const key = forwarding.elsewhere(c, inputOf(json));
    if (key !== undefined) return forwarding.forward(c, key, new TextEncoder().encode(JSON.stringify(json)));
    return c.json(await batches.create(json, c.get('caller'), forwardedCancel(c)));
  });
  app.get(all, async (c) => {
    const listed = await forwarding.listed(c, batches.list(c.get('caller').name));
    return c.json(forwardedCaller(c) === undefined ? pageOf(listed, c) : { data: listed });
  });
  app.get(one, (c) => c.json(batches.get(c.req.param('id') ?? '', c.get('caller').name)));
  app.post(cancel, async (c) => c.json(await batches.cancel(c.req.param('id') ?? '', c.get('caller').name)));
  app.all(all, (c) => refuseMethod(c, 'GET, POST'));
  app.all(one, (c) => refuseMethod(c, 'GET'));
  app.all(cancel, (c) => refuseMethod(c, 'POST'));
}

/** Empty if there is none: `create` then refuses the body. */
function inputOf(json: unknown): string {
  const id = typeof json === 'object' && json !== null && 'input_file_id' in json ? json.input_file_id : undefined;
  return typeof id === 'string' ? id : '';
}

/** A page of the batches, newest first. @throws ApiError 400 for a limit out of range */
function pageOf(batches: readonly Listed[], c: Context<Env>): object {
  const [after, limit] = [c.req.query('after'), limitOf(c)];
  const newest = batches.toReversed();
  const from = after === undefined ? 0 : newest.findIndex(({ id }) => id === after) + 1;
  const data = newest.slice(from, from + limit);
  return {
    ...{ object: 'list', data, first_id: data.at(0)?.id ?? null, last_id: data.at(-1)?.id ?? null },
    has_more: newest.length > from + limit,
  };
}

function within(storage: Storage | undefined, name: string): Storage | undefined {
  return storage && { ...storage, folder: storage.folder.within(name) };
}

function addFileRoutes(app: Hono<Env>, files: FileStore, { bodyBytesMax, forwarding }: BatchSettings): void {
  const [all, one, content] = ['/v1/files', '/v1/files/:id', '/v1/files/:id/content'];
  app.use('/v1/files/:id/*', forwarding.byId);
  app.post(all, async (c) => {
    const { filename, bytes } = await uploadOf(c, bodyBytesMax);
    return c.json(describeFile(await files.add(c.get('caller'), { filename, bytes })));
  });
  app.get(all, async (c) => {
    const own = files.list(c.get('caller').name).map(describeFile);
    return c.json({ object: 'list', data: await forwarding.listed(c, own), has_more: false });
  });
  app.get(one, (c) => c.json(describeFile(files.get(c.req.param('id') ?? '', c.get('caller').name))));
  app.get(content, async (c) => {
    const bytes = await files.content(c.req.param('id') ?? '', c.get('caller').name);
    return new Response(bytes, { headers: { 'content-type': 'application/octet-stream' } });
  });
  app.delete(one, async (c) => {
    const id = c.req.param('id') ?? '';
    await files.remove(id, c.get('caller').name);
    return c.json({ id, object: 'file', deleted: true });
  });
  app.all(all, (c) => refuseMethod(c, 'GET, POST'));
  app.all(one, (c) => refuseMethod(c, 'GET, DELETE'));
  app.all(content, (c) => refuseMethod(c, 'GET'));
}

/** A form with a file and its purpose. @throws ApiError 400 naming the field */
async function uploadOf(c: Context<Env>, bytesMax: number): Promise<{ filename: string; bytes: Uint8Array }> {
  const type = c.req.header('content-type') ?? '';
  if (!type.startsWith('multipart/form-data'))
    throw badField('content-type', 'Cannot store file: the body is not a form: send multipart/form-data');
  const body = await readBytes(c.req.raw, bytesMax);
  let form: FormData;
  try {
    form = await new Response(Uint8Array.from(body), { headers: { 'content-type': type } }).formData();
  } catch {
    throw badField(undefined, 'Cannot store file: the form is invalid');
  }
  const purpose = form.get('purpose');
  if (purpose !== 'batch') throw badField('purpose', "Cannot store file: 'purpose' must be 'batch'");
  const file = form.get('file');
  if (!(file instanceof File)) throw badField('file', "Cannot store file: 'file' is missing");
  for (const name of form.keys())
    if (name !== 'file' && name !== 'purpose')
      throw badField(name, `Cannot store file: unknown field '${name.slice(0, 64)}'`, 'unknown_parameter');
  return { filename: file.name.slice(0, 256), bytes: new Uint8Array(await file.arrayBuffer()) };
}

function limitOf(c: Context<Env>): number {
  const limit = Number(c.req.query('limit') ?? listDefault);
  if (Number.isInteger(limit) && limit >= 1 && limit <= listMax) return limit;
  throw badField('limit', `Cannot list: 'limit' must be 1 to ${listMax}`);
}
