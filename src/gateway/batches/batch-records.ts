// Stored batches: the request, its progress and each response, so that a restarted process continues them.
import { z } from 'zod';
import { FileBytes, MemoryBytes, type StoredBytes } from '../http/stored-bytes.ts';
import { BatchInput } from './batch-input.ts';
import { batchUrls, type LineError } from './batch-lines.ts';
import type { Storage } from './file-store.ts';

export const batchSchema = z.object({
  input_file_id: z.string(),
  endpoint: z.enum(batchUrls),
  completion_window: z.literal('24h'),
  metadata: z.record(z.string().max(64), z.string().max(512)).optional(),
});

const statuses = ['in_progress', 'failed', 'completed', 'expired', 'cancelling', 'cancelled'] as const;
export type Status = (typeof statuses)[number];
const kinds = ['answers', 'errors'] as const;
type Kind = (typeof kinds)[number];

export interface Batch {
  readonly id: string;
  readonly tenant: string;
  /** The request that created it. */
  readonly request: z.infer<typeof batchSchema>;
  readonly createdS: number;
  readonly errors: readonly LineError[];
  /** Lines of the input; `input` is empty once the batch has ended. */
  readonly total: number;
  input: BatchInput;
  readonly stop: AbortController;
  status: Status;
  /** The time of each state, in seconds. */
  readonly at: { [S in Status]?: number | undefined };
  completed: number;
  failed: number;
  readonly outputs: Record<Kind, string[]>;
  outputFile: string | undefined;
  errorFile: string | undefined;
}

const recordSchema = z.object({
  id: z.string().regex(/^batch_\w{1,64}$/),
  owner: z.string(),
  // The stored field keeps its name of earlier releases.
  asked: batchSchema,
  createdS: z.number(),
  errors: z.array(
    z.object({ code: z.string(), message: z.string(), param: z.string().nullable(), line: z.number().nullable() }),
  ),
  total: z.number(),
  status: z.enum(statuses),
  at: z.partialRecord(z.enum(statuses), z.number()),
  completed: z.number(),
  failed: z.number(),
  outputFile: z.string().optional(),
  errorFile: z.string().optional(),
});

const answerSchema = z.object({ customId: z.string(), kind: z.enum(kinds), line: z.string() });

/** Undefined for a damaged line: its request runs again. */
function readAnswer(line: string): z.infer<typeof answerSchema> | undefined {
  try {
    return answerSchema.parse(JSON.parse(line));
  } catch {
    return undefined;
  }
}

/** A batch of which no line has been started. */
export function newBatch(
  about: Pick<Batch, 'id' | 'tenant' | 'request' | 'createdS' | 'errors' | 'input' | 'total'>,
): Batch {
  return {
    ...about,
    ...{ stop: new AbortController(), status: 'in_progress', at: {}, completed: 0, failed: 0 },
    ...{ outputs: { answers: [], errors: [] }, outputFile: undefined, errorFile: undefined },
  };
}

export const noInput = new BatchInput(new MemoryBytes(new Uint8Array()));

export function hasEnded({ status }: Pick<Batch, 'status'>): boolean {
  return status !== 'in_progress' && status !== 'cancelling';
}

/** Of files that a running batch has. */
const progressSuffixes = ['.input', '.answers'];

function inputName(id: string): string {
  return `${id}.input`;
}

export class BatchRecords {
  /** Undefined: batches are lost when the process exits. */
  readonly #storage: Storage | undefined;

  constructor(storage: Storage | undefined) {
    this.#storage = storage;
  }

  /**
   * Keeps the input of a batch, which exists once its record is saved. Returns bytes that last when the file is removed.
   * @throws ApiError 503 if it cannot be written
   */
  async keepInput(id: string, bytes: StoredBytes): Promise<StoredBytes> {
    if (this.#storage === undefined || !(bytes instanceof FileBytes)) return bytes;
    const { folder } = this.#storage;
    await folder.link(inputName(id), bytes);
    return folder.file(inputName(id), bytes.length);
  }

  /** Resolves when the state at the call is on disk; states follow each other in the order of the calls. */
  async save({ tenant, request, stop: _, input: __, outputs: ___, ...batch }: Batch): Promise<void> {
    if (this.#storage === undefined) return;
    const { folder, owners } = this.#storage;
    await folder.write(`${batch.id}.json`, JSON.stringify({ ...batch, asked: request, owner: owners.ownerOf(tenant) }));
    if (hasEnded(batch)) await this.#removeProgress(batch.id);
  }

  /** Resolves when the answer is on disk. */
  async addAnswer({ id }: Batch, customId: string, kind: Kind, line: string): Promise<void> {
    await this.#storage?.folder.append(`${id}.answers`, JSON.stringify({ customId, kind, line }));
  }

  async remove({ id }: Pick<Batch, 'id'>): Promise<void> {
    await this.#storage?.folder.remove(`${id}.json`);
    await this.#removeProgress(id);
  }

  /** The stored batches, oldest first. */
  restore(): readonly Batch[] {
    if (this.#storage === undefined) return [];
    const { folder } = this.#storage;
    const restored = folder.names('.json').flatMap((name) => this.#restoreOne(this.#storage, name) ?? []);
    const running = new Set(restored.filter((batch) => !hasEnded(batch)).map(({ id }) => id));
    for (const suffix of progressSuffixes) folder.prune(suffix, (name) => running.has(name));
    return restored.sort((a, b) => a.createdS - b.createdS);
  }

  #restoreOne(storage: Storage | undefined, name: string): Batch | undefined {
    const record = storage?.folder.readAs(`${name}.json`, (json) => recordSchema.parse(JSON.parse(json.toString())));
    if (storage === undefined || record === undefined) return undefined;
    const { owner, asked: request, outputFile, errorFile, status, at, completed, failed, ...about } = record;
    const batch = newBatch({ ...about, request, tenant: storage.owners.nameOf(owner), input: noInput });
    Object.assign(batch, { status, at, completed, failed, outputFile, errorFile });
    if (hasEnded(batch)) return batch;
    const done = new Map(
      storage.folder.lines(`${name}.answers`).flatMap((line) => {
        const answer = readAnswer(line);
        return answer === undefined ? [] : [[answer.customId, answer] as const];
      }),
    );
    for (const { kind, line } of done.values()) batch.outputs[kind].push(line);
    batch.completed = batch.outputs.answers.length;
    batch.failed = batch.outputs.errors.length;
    const input = storage.folder.fileLeft(inputName(name));
    batch.input = input === undefined ? noInput : new BatchInput(input, done.keys());
    return batch;
  }

  /** The next start removes what cannot be removed now. */
  async #removeProgress(id: string): Promise<void> {
    const { folder } = this.#storage ?? {};
    await Promise.allSettled(progressSuffixes.map((suffix) => folder?.remove(id + suffix)));
  }
}
