// Resolves `--model` to a local path. Models of the hub are downloaded first.
import { existsSync } from 'node:fs';
import { HubClient } from '../../../weights/hub/client.ts';
import { HubError } from '../../../weights/hub/errors.ts';
import { findCached, type PulledModel, pullModel } from '../../../weights/hub/pull.ts';
import { type HubReference, parseHubReference } from '../../../weights/hub/reference.ts';
import { hubSettings } from '../../../weights/hub/settings.ts';
import { embeddedModel } from '../../package-root.ts';
import { UsageError } from '../../usage-error.ts';
import { PullProgress } from './pull-progress.ts';

export interface LocatedModel {
  readonly path: string;
  /** Model id for clients: the reference of a hub model; undefined for a path. */
  readonly name: string | undefined;
}

/** @throws HubError if the model is available neither from the hub nor from the cache */
export async function locateModel(model: string | undefined): Promise<LocatedModel> {
  if (model === undefined) return { path: embeddedModel, name: undefined };
  const reference = hubReferenceOf(model);
  if (reference === undefined) return { path: model, name: undefined };
  return { path: (await pull(reference)).path, name: model };
}

/** The same without downloads. @throws HubError */
export function locateCached(model: string): string {
  const reference = hubReferenceOf(model);
  if (reference === undefined) return model;
  const { cacheFolder } = hubSettings(process.env);
  const cached = findCached(cacheFolder, reference);
  if (cached === undefined)
    throw new HubError(
      'missing',
      `Cannot read ${model}: it is not in ${cacheFolder}: download it with kvasir models pull ${model}`,
    );
  return cached.path;
}

/** An existing path takes precedence over a reference of the hub. @throws UsageError for neither */
function hubReferenceOf(model: string): HubReference | undefined {
  if (existsSync(model)) return undefined;
  const reference = parseHubReference(model);
  if (reference === undefined) throw new UsageError(`No file or folder '${model}'; a hub model is org/name`);
  return reference;
}

/** Downloads missing files with progress on stderr. A signal stops it, and a later call resumes. @throws HubError */
export async function pull(reference: HubReference): Promise<PulledModel> {
  const stop = new AbortController();
  const abort = (): void => stop.abort();
  process.once('SIGINT', abort);
  process.once('SIGTERM', abort);
  try {
    const client = new HubClient(hubSettings(process.env), { signal: stop.signal });
    return await pullModel(client, reference, new PullProgress(reference.text, process.stderr).show);
  } finally {
    process.off('SIGINT', abort);
    process.off('SIGTERM', abort);
  }
}
