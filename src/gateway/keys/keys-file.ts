// The file of `--api-keys`: hashed keys with names, roles, cache groups and limits.
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { z } from 'zod';
import { byteCount, byteCountPattern } from '../../util/byte-count.ts';
import { watchFiles } from '../http/watch-files.ts';
import type { Caller } from './caller.ts';

/** A caller with the SHA-256 digest of its key. */
export interface KeyEntry {
  readonly digest: Buffer;
  readonly caller: Caller;
}

const name = z.string().regex(/^[\w.@-]{1,64}$/, 'letters, digits, _ . @ -, at most 64');
const count = z.number().int().min(0);
const bytes = z.union([count, z.string().regex(byteCountPattern).transform(byteCount)], 'write 512m or 2g');

const limits = z.strictObject({
  requests_per_minute: count.min(1).optional(),
  tokens_per_minute: count.min(1).optional(),
  concurrent_requests: count.min(1).optional(),
  queued_requests: count.min(1).optional(),
  connections: count.min(1).optional(),
  batch_requests: count.optional(),
  files: count.optional(),
  file_bytes: bytes.optional(),
  pinned_tokens: count.optional(),
  priority: z.number().int().min(-1000).max(1000).optional(),
});

const fileSchema = z.strictObject({
  keys: z.array(
    z.strictObject({
      name,
      sha256: z.string().regex(/^[0-9a-f]{64}$/i, '64 hexadecimal digits: the output of sha256sum for the key'),
      role: z.enum(['user', 'admin']).default('user'),
      cache_group: name.optional(),
      limits: limits.default({}),
    }),
  ),
});

/** @throws Error in one line that names the file and the field */
export function readKeysFile(path: string): readonly KeyEntry[] {
  try {
    return parseKeys(readFileSync(path, 'utf8'));
  } catch (error) {
    throw new Error(`Cannot read the API keys of ${path}: ${whyOf(error)}`);
  }
}

/** @throws Error that names the field */
export function parseKeys(text: string): readonly KeyEntry[] {
  const { keys } = fileSchema.parse(parse(text) ?? {});
  const [twice] = keys.filter((key, i) => keys.findIndex((other) => sameKey(key, other)) < i);
  if (twice !== undefined) throw new Error(`'${twice.name}' has the name or the hash of an earlier key`);
  return keys.map(({ name, sha256, role, cache_group, limits }) => ({
    digest: Buffer.from(sha256, 'hex'),
    caller: {
      ...{ name, role, cacheGroup: cache_group === undefined ? `key ${name}` : `group ${cache_group}` },
      limits: {
        requestsPerMinute: limits.requests_per_minute,
        tokensPerMinute: limits.tokens_per_minute,
        concurrentRequests: limits.concurrent_requests,
        queuedRequests: limits.queued_requests,
        connections: limits.connections,
        batchRequests: limits.batch_requests,
        files: limits.files,
        fileBytes: limits.file_bytes,
        pinnedTokens: limits.pinned_tokens,
        priority: limits.priority,
      },
    },
  }));
}

/**
 * Reads the file again whenever it is replaced. A file that cannot be read changes nothing. Called before the first
 * read. Returns the end of the watch.
 */
export function watchKeysFile(
  path: string,
  onKeys: (keys: readonly KeyEntry[]) => void,
  onError: (message: string) => void,
): () => void {
  return watchFiles([path], () => {
    try {
      onKeys(readKeysFile(path));
    } catch (error) {
      onError(error instanceof Error ? error.message : String(error));
    }
  });
}

function sameKey(a: { name: string; sha256: string }, b: { name: string; sha256: string }): boolean {
  return a.name === b.name || a.sha256.toLowerCase() === b.sha256.toLowerCase();
}

function whyOf(error: unknown): string {
  if (error instanceof z.ZodError) {
    const [issue] = error.issues;
    return issue === undefined ? 'it is invalid' : `${issue.path.join('.') || 'the file'}: ${issue.message}`;
  }
  return error instanceof Error ? (error.message.split('\n')[0] ?? '') : String(error);
}
