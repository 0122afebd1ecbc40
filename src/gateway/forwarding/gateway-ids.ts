// Ids of files, batches and contexts. In a cluster they name the gateway that has it: any gateway
// forwards to that one.
import { randomBytes, randomUUID } from 'node:crypto';
import type { DataFolder } from '../http/data-folder.ts';

/** The outputs of a batch have its id in theirs. */
const keyPattern = /^(?:file-|ctx-|batch_|file-batch_)([0-9a-f]{8})_[0-9a-f]{32}(?:-output|-error)?$/;
const keyFile = 'gateway';

export class GatewayIds {
  readonly #key: string | undefined;

  /** @param key of this gateway; undefined: it is alone */
  constructor(key: string | undefined) {
    this.#key = key;
  }

  /** @param prefix with its last character, `-` or `_` */
  create(prefix: 'file-' | 'batch_' | 'ctx-'): string {
    const number = randomUUID().replaceAll('-', '');
    return this.#key === undefined ? prefix + number : `${prefix}${this.#key}_${number}`;
  }
}

/** The key of the gateway that has the file, batch or context; undefined: the id names none. */
export function gatewayKeyOf(id: string): string | undefined {
  return keyPattern.exec(id)?.[1];
}

/** The key of a gateway, which its data folder keeps. @throws ApiError if the folder cannot be written */
export async function gatewayKey(data: DataFolder | undefined): Promise<string> {
  const stored = data?.read(keyFile)?.toString().trim();
  if (stored !== undefined && /^[0-9a-f]{8}$/.test(stored)) return stored;
  const key = randomBytes(4).toString('hex');
  await data?.write(keyFile, key);
  return key;
}
