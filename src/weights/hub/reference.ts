// Names of models on the hub: `org/name`, `org/name@revision`, `org/name:file.gguf`.

export interface HubReference {
  /** The reference as written. */
  readonly text: string;
  /** `org/name` */
  readonly id: string;
  /** Branch, tag or commit. */
  readonly revision: string;
  /** Path of a GGUF file in the repository, or a quantisation in its name. */
  readonly file: string | undefined;
}

const pattern =
  /^(?<id>[A-Za-z0-9_][\w.-]{0,95}\/[A-Za-z0-9_][\w.-]{0,95})(?:@(?<revision>[A-Za-z0-9_][\w./-]{0,255}))?(?::(?<file>[^:]{1,1024}))?$/;
const commitPattern = /^[0-9a-f]{40}$/;

/** undefined: the text is not a reference, so it may be a path. */
export function parseHubReference(text: string): HubReference | undefined {
  const { id, revision = 'main', file } = pattern.exec(text)?.groups ?? {};
  if (id === undefined) return undefined;
  // The hub forbids both in names, and the cache's folder names rely on it.
  if (id.includes('--') || `${id}/${revision}`.includes('..')) return undefined;
  if (file === undefined && /\.(gguf|safetensors)$/i.test(id)) return undefined;
  if (file !== undefined && !isInsideRelative(file)) return undefined;
  return { text, id, revision, file };
}

export function isCommit(revision: string): boolean {
  return commitPattern.test(revision);
}

/** True for a relative path that stays inside its root and has no `.`, `..` or empty part. */
export function isInsideRelative(path: string): boolean {
  if (path.length > 1024 || /[\p{Cc}\\]/u.test(path)) return false;
  return path
    .split('/')
    .every((part) => part !== '' && part !== '.' && part !== '..' && Buffer.byteLength(part) <= 255);
}
