// The routes of files and batches.
import type { Context, Hono } from 'hono';
import { readBytes, readJson } from '../http/body.ts';
import { badField } from '../http/errors.ts';
import { type Env, refuseMethod } from '../http/route-context.ts';
import { Batches, type BatchRun } from './batches.ts';
import { describeFile, FileStore, type Storage } from './file-store.ts';

/** Limit of all files together, as a multiple of the largest body. */
const bodiesMax = 16;
const listMax = 100;
const listDefault = 20;

/** @param run runs the requests @param stopping aborted when the server stops; running batch requests are cancelled @param storage undefined: files and batches are lost when the process exits */
export function addBatchRoutes(
  app: Hono<Env>,
  run: BatchRun,
  bodyBytesMax: number,
  stopping: AbortSignal,
  storage: Storage | undefined,
): void {
  const files = new FileStore(bodiesMax * bodyBytesMax, within(storage, 'files'));
  addFileRoutes(app, files, bodyBytesMax);
  const batches = new Batches({ ...run, files, stopping }, within(storage, 'batches'));
  const [all, one, cancel] = ['/v1/batches', '/v1/batches/:id', '/v1/batches/:id/cancel'];
  app.post(all, async (c) => c.json(batches.create(await readJson(c.req.raw, bodyBytesMax), c.get('caller'))));
  app.get(all, (c) => c.json(batches.list(c.get('caller').name, c.req.query('after'), limitOf(c))));
  app.get(one, (c) => c.json(batches.get(c.req.param('id') ?? '', c.get('caller').name)));
  app.post(cancel, (c) => c.json(batches.cancel(c.req.param('id') ?? '', c.get('caller').name)));
  app.all(all, (c) => refuseMethod(c, 'GET, POST'));
  app.all(one, (c) => refuseMethod(c, 'GET'));
  app.all(cancel, (c) => refuseMethod(c, 'POST'));
}

function within(storage: Storage | undefined, name: string): Storage | undefined {
  return storage && { ...storage, folder: storage.folder.within(name) };
}

function addFileRoutes(app: Hono<Env>, files: FileStore, bodyBytesMax: number): void {
  const [all, one, content] = ['/v1/files', '/v1/files/:id', '/v1/files/:id/content'];
  app.post(all, async (c) => {
    const { filename, bytes } = await uploadOf(c, bodyBytesMax);
    return c.json(describeFile(files.add(c.get('caller'), { filename, bytes })));
  });
  app.get(all, (c) =>
    c.json({ object: 'list', data: files.list(c.get('caller').name).map(describeFile), has_more: false }),
  );
  app.get(one, (c) => c.json(describeFile(files.get(c.req.param('id') ?? '', c.get('caller').name))));
  app.get(content, (c) => {
    const { bytes } = files.get(c.req.param('id') ?? '', c.get('caller').name);
    return new Response(Uint8Array.from(bytes), { headers: { 'content-type': 'application/octet-stream' } });
  });
  app.delete(one, (c) => {
    const id = c.req.param('id') ?? '';
    files.remove(id, c.get('caller').name);
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
