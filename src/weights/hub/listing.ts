// Lists a repository at a revision: its commit, and every file with size and hash.
import { z } from 'zod';
import type { HubClient } from './client.ts';
import { HubError } from './errors.ts';
import { type HubReference, isCommit, isInsideRelative } from './reference.ts';
import { withRetries } from './retry.ts';

export interface RemoteFile {
  /** Relative to the repository's root. */
  readonly path: string;
  readonly bytes: number;
  /**
   * sha256 of the content for large files, Git's sha1 of the blob for small ones. Also the blob's name in the cache.
   */
  readonly hash: { readonly kind: 'sha256' | 'git-sha1'; readonly hex: string };
}

export interface Listing {
  readonly commit: string;
  readonly files: ReadonlyMap<string, RemoteFile>;
}

const pagesMax = 1000;

const bytes = z.number().int().min(0);
const revisionSchema = z.object({ sha: z.string().refine(isCommit, 'not a commit') });
const treeSchema = z.array(z.looseObject({ type: z.string() }));
const fileSchema = z.object({
  path: z.string(),
  size: bytes,
  oid: z.string().regex(/^[0-9a-f]{40}$/),
  lfs: z.object({ oid: z.string().regex(/^[0-9a-f]{64}$/), size: bytes }).nullish(),
});

/** @throws HubError when the hub is unreachable, refuses the request or sends an invalid list */
export async function listRepository(client: HubClient, reference: HubReference, retriesMax: number): Promise<Listing> {
  const api = `${client.settings.endpoint}/api/models/${reference.id}`;
  const what = `Cannot reach ${client.settings.endpoint}`;
  const get = (url: string) => withRetries(what, client, { retriesMax }, () => client.json(url, reference));
  const { body } = await get(`${api}/revision/${encodeURIComponent(reference.revision)}`);
  const commit = parsed(revisionSchema, body, reference).sha;
  const files = new Map<string, RemoteFile>();
  let url: string | undefined = `${api}/tree/${commit}?recursive=true`;
  for (let page = 0; url !== undefined; page++) {
    if (page === pagesMax)
      throw new HubError('corrupt', `Cannot use ${reference.text}: its file list has more than ${pagesMax} pages`);
    const { body, next }: Awaited<ReturnType<HubClient['json']>> = await get(url);
    for (const entry of parsed(treeSchema, body, reference)) {
      if (entry.type !== 'file') continue;
      const file = remoteFile(parsed(fileSchema, entry, reference), reference);
      files.set(file.path, file);
    }
    url = next;
  }
  return { commit, files };
}

function remoteFile({ path, size, oid, lfs }: z.infer<typeof fileSchema>, reference: HubReference): RemoteFile {
  if (!isInsideRelative(path))
    throw new HubError(
      'corrupt',
      `Cannot use ${reference.text}: its file list names '${path}', which is outside the repository`,
    );
  if (lfs === null || lfs === undefined) return { path, bytes: size, hash: { kind: 'git-sha1', hex: oid } };
  return { path, bytes: lfs.size, hash: { kind: 'sha256', hex: lfs.oid } };
}

function parsed<T>(schema: z.ZodType<T>, body: unknown, reference: HubReference): T {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const key = issue?.path.map(String).join('.') ?? '';
  throw new HubError(
    'corrupt',
    `Cannot use ${reference.text}: the hub's response is invalid: ${issue?.message} (${key})`,
  );
}
