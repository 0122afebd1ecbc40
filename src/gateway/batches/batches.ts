// /v1/batches: many requests without a waiting client, served with spare capacity.

import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { Cancelled } from '../../core/protocol/ports.ts';
import { oneLine } from '../../util/one-line.ts';
import type { Listed } from '../forwarding/forwarding.ts';
import type { GatewayIds } from '../forwarding/gateway-ids.ts';
import { endpoints } from '../http/endpoints.ts';
import { ApiError, badField, newRequestId, toApiError } from '../http/errors.ts';
import type { StoredBytes } from '../http/stored-bytes.ts';
import type { Caller } from '../keys/caller.ts';
import type { EndpointCall, RunEndpoint } from '../openai/endpoint.ts';
import { parseBody } from '../openai/fields.ts';
import { BatchInput } from './batch-input.ts';
import { answerLine, type BatchLine, checkInput } from './batch-lines.ts';
import { type Batch, BatchRecords, batchSchema, hasEnded, newBatch, noInput, type Status } from './batch-records.ts';
import type { FileStore, Storage, StoredFile } from './file-store.ts';

const windowMs = 24 * 3_600_000;
const batchesMax = 256;
/** Bytes that an answer is expected to need. */
const answerBytes = 1024;
const retryStoreMs = 10_000;
const retryReadMs = 10_000;
/** Requests of a batch that run at once; the others wait here, not in the queue. */
const concurrentMax = 16;

const nowS = () => Math.floor(Date.now() / 1000);

/** How requests of batches run. */
export interface BatchRun {
  /** Runs an endpoint with the model that its request names. */
  readonly run: RunEndpoint;
  readonly logger: Logger;
  readonly callerNamed: (tenant: string) => Caller;
}

interface BatchesContext extends BatchRun {
  readonly files: FileStore;
  readonly ids: GatewayIds;
  /** Aborted to start no more requests and cancel running ones. */
  readonly stopping: AbortSignal;
}

/** Runs batches and keeps the latest ones, in memory or in a folder, from which a restarted process continues them. */
export class Batches {
  readonly #run: BatchRun['run'];
  readonly #logger: Logger;
  readonly #files: FileStore;
  readonly #ids: GatewayIds;
  readonly #callerNamed: (tenant: string) => Caller;
  readonly #batches = new Map<string, Batch>();
  /** Batches that are being stored: limits count them, and clients find them once they are on disk. Undefined: the lines are not counted yet. */
  readonly #creating = new Map<string, Batch | undefined>();
  /** Batches whose lines have ended and whose files are being stored: nothing stops them any more. */
  readonly #finishing = new Set<Batch>();

  readonly #records: BatchRecords;
  readonly #stopping: AbortSignal;

  /** @param storage undefined: batches are lost when the process exits */
  constructor({ run, logger, files, ids, stopping, callerNamed }: BatchesContext, storage?: Storage) {
    this.#run = run;
    this.#logger = logger;
    this.#files = files;
    this.#ids = ids;
    this.#callerNamed = callerNamed;
    this.#stopping = stopping;
    this.#records = new BatchRecords(storage);
    stopping.addEventListener('abort', () => {
      for (const batch of this.#batches.values()) batch.stop.abort();
    });
    for (const batch of this.#records.restore()) {
      this.#batches.set(batch.id, batch);
      if (hasEnded(batch)) continue;
      const { bytes } = batch.input;
      files.reserveAgain(batch.id, reservedBytes(bytes, batch.total), { id: batch.request.input_file_id, bytes });
      this.#start(batch);
    }
  }

  /**
   * @param unclaimed aborted when the client has no answer: a batch that it may request again does not run
   * @throws ApiError 400 naming the field, 404 for an unknown file, 429 for one batch too many or above a limit of the
   * caller's key, 503 if it cannot be written
   */
  async create(json: unknown, caller: Caller, unclaimed?: Cancelled): Promise<object> {
    const isUnclaimed = (): boolean => unclaimed?.aborted === true;
    if (isUnclaimed()) throw new ApiError(499, 'Cannot run batch: the client disconnected');
    const request = parseBody(batchSchema, json);
    const file = this.#files.get(request.input_file_id, caller.name);
    if (file.purpose !== 'batch')
      throw badField(
        'input_file_id',
        `Cannot run batch: its input is a file of purpose '${file.purpose}', not 'batch'`,
      );
    this.#evictEnded();
    const id = this.#ids.create('batch_');
    this.#creating.set(id, undefined);
    const batch = await this.#store(id, request, caller, file).finally(() => this.#creating.delete(id));
    this.#batches.set(id, batch);
    if (!hasEnded(batch)) this.#start(batch);
    if (isUnclaimed()) this.#stopUnclaimed(batch);
    else unclaimed?.addEventListener('abort', () => this.#stopUnclaimed(batch));
    return describe(batch);
  }

  /** Checks the input of a new batch and stores both. A failure leaves nothing. */
  async #store(id: string, request: Batch['request'], caller: Caller, file: StoredFile): Promise<Batch> {
    const bytes = await this.#records.keepInput(id, file.bytes).catch((error: unknown) => {
      // It may have been removed meanwhile.
      this.#files.get(file.id, caller.name);
      throw error;
    });
    try {
      const checked = await checkInput(bytes, request.endpoint);
      const [errors, total] = typeof checked === 'number' ? [[], checked] : [checked, 0];
      const input = total > 0 ? new BatchInput(bytes) : noInput;
      const batch = newBatch({ id, tenant: caller.name, request, createdS: nowS(), errors, input, total });
      setStatus(batch, errors.length > 0 ? 'failed' : 'in_progress');
      this.#reserve(batch, caller, file);
      this.#creating.set(id, batch);
      await this.#records.save(batch);
      return batch;
    } catch (error) {
      this.#files.release(id);
      await this.#records.remove({ id }).catch(() => {});
      throw error;
    }
  }

  /** Reserves what the answers of a batch will need, and its input. */
  #reserve({ id, total, tenant }: Batch, { limits }: Caller, input: StoredFile): void {
    const most = limits.batchRequests;
    const created = [...this.#creating.values()].flatMap((batch) => batch ?? []);
    const open = [...this.#batches.values(), ...created].filter((batch) => batch.tenant === tenant && !hasEnded(batch));
    const left = open.reduce((sum, batch) => sum + batch.total - batch.completed - batch.failed, 0);
    if (most !== undefined && left + total > most) {
      const figures = `${left} of its requests are left, this batch has ${total}, and its key allows ${most}`;
      throw new ApiError(429, `Cannot run batch of '${tenant}': ${figures}`, {
        code: 'key_limit',
        param: 'batch_requests',
      });
    }
    if (total > 0) this.#files.reserve(id, reservedBytes(input.bytes, total), input);
  }

  /** Oldest first. */
  list(tenant: string): readonly Listed[] {
    return [...this.#batches.values()].filter((batch) => batch.tenant === tenant).map(describe);
  }

  get(id: string, tenant: string): object {
    return describe(this.#find(id, tenant));
  }

  /** Cancels running requests of the batch; its files have the responses so far. */
  async cancel(id: string, tenant: string): Promise<object> {
    const batch = this.#find(id, tenant);
    await this.#stop(batch);
    return describe(batch);
  }

  #stopUnclaimed(batch: Batch): void {
    this.#stop(batch).catch((error: unknown) => {
      this.#logger.error({ err: error, batch: batch.id }, 'Cannot store that a batch stops');
    });
  }

  async #stop(batch: Batch): Promise<void> {
    if (batch.status !== 'in_progress' || this.#finishing.has(batch)) return;
    setStatus(batch, 'cancelling');
    batch.stop.abort();
    await this.#records.save(batch);
  }

  #find(id: string, tenant: string): Batch {
    const batch = this.#batches.get(id);
    if (batch?.tenant === tenant) return batch;
    throw new ApiError(404, `Cannot find batch '${oneLine(id, 128)}'`, { code: 'batch_not_found' });
  }

  /** Removes the oldest ended batch if there are too many. */
  #evictEnded(): void {
    if (this.#batches.size + this.#creating.size < batchesMax) return;
    for (const [id, batch] of this.#batches) {
      if (!hasEnded(batch)) continue;
      this.#batches.delete(id);
      // The folder logs a failure; a restarted gateway then has the batch again.
      this.#records.remove(batch).catch(() => {});
      return;
    }
    throw new ApiError(429, `Cannot run batch: ${batchesMax} are running`, { code: 'too_many_batches' });
  }

  /** Starts or continues a batch. */
  #start(batch: Batch): void {
    // Each running request has two listeners; more would be a leak.
    setMaxListeners(2 * concurrentMax, batch.stop.signal);
    if (batch.status === 'cancelling' || this.#stopping.aborted) batch.stop.abort();
    void this.#runBatch(batch);
  }

  async #runBatch(batch: Batch): Promise<void> {
    const expire = (): void => {
      setStatus(batch, 'expired');
      batch.stop.abort();
    };
    const expiry = setTimeout(expire, Math.max(0, batch.createdS * 1000 + windowMs - Date.now()));
    expiry.unref();
    await Promise.all(Array.from({ length: concurrentMax }, () => this.#runLines(batch)));
    clearTimeout(expiry);
    // After a stop, a restarted process continues the batch.
    if (!this.#stopping.aborted) await this.#finish(batch);
  }

  async #runLines(batch: Batch): Promise<void> {
    while (!batch.stop.signal.aborted) {
      const line = await batch.input.next((error) => this.#awaitReadable(batch, error));
      if (line === undefined) return;
      try {
        if (!batch.stop.signal.aborted) await this.#runLine(batch, line);
      } finally {
        line.release();
      }
    }
  }

  /** False once the batch stops. */
  async #awaitReadable({ id, stop: { signal } }: Batch, err: unknown): Promise<boolean> {
    this.#logger.error({ err, batch: id }, 'Cannot read the input of a batch: trying again');
    await sleep(retryReadMs, undefined, { signal, ref: false }).catch(() => {});
    return !signal.aborted;
  }

  /** Repeats a line while the limit of accepted requests is reached or no instance serves. */
  async #runLine(batch: Batch, { customId, body }: BatchLine): Promise<void> {
    const { signal } = batch.stop;
    const tokenized = new Map<string, Int32Array>();
    for (;;) {
      const requestId = newRequestId();
      const { status, answer, retryAfterMs } = await this.#runRequest(batch, { requestId, tokenized }, body);
      if (signal.aborted) return;
      if ((status === 429 || status === 503) && retryAfterMs !== undefined) {
        await sleep(retryAfterMs, undefined, { signal, ref: false }).catch(() => {});
        if (signal.aborted) return;
        continue;
      }
      const id = `batch_req_${randomUUID().replaceAll('-', '')}`;
      const kind = status === 200 ? 'answers' : 'errors';
      const text = answerLine(id, customId, status, requestId, answer);
      await this.#storeAnswer(batch, customId, kind, text);
      batch.outputs[kind].push(text);
      if (status === 200) batch.completed++;
      else batch.failed++;
      return;
    }
  }

  /** If a response cannot be written, its request runs again after a restart. */
  async #storeAnswer(batch: Batch, customId: string, kind: 'answers' | 'errors', text: string): Promise<void> {
    try {
      await this.#records.addAnswer(batch, customId, kind, text);
    } catch (err) {
      this.#logger.error({ err, batch: batch.id }, 'Cannot store an answer of a batch');
    }
  }

  async #runRequest(
    { tenant, request, stop }: Batch,
    attempt: Pick<EndpointCall, 'requestId' | 'tokenized'>,
    body: unknown,
  ) {
    const startMs = performance.now();
    const call: EndpointCall = {
      ...attempt,
      startMs,
      caller: this.#callerNamed(tenant),
      line: undefined,
      sloClass: undefined,
      trace: undefined,
      batch: true,
      signal: stop.signal,
    };
    try {
      const response = await this.#run(endpoints[request.endpoint], body, call);
      return { status: response.status, answer: await response.json(), retryAfterMs: undefined };
    } catch (error) {
      const { status, retryAfterMs } = toApiError(error);
      return { status, answer: toApiError(error).body(), retryAfterMs };
    }
  }

  /** Answers stay in memory until they are stored. */
  async #finish(batch: Batch): Promise<void> {
    this.#finishing.add(batch);
    const { tenant, outputs, id, total } = batch;
    const storeFile = async (lines: readonly string[], name: 'output' | 'error'): Promise<string | undefined> => {
      if (lines.length === 0) return undefined;
      const file = { tenant, filename: `${id}_${name}.jsonl`, bytes: Buffer.from(lines.join('')) };
      return (await this.#files.addOutput(file, `file-${id}-${name}`)).id;
    };
    const left = total - batch.completed - batch.failed;
    try {
      const outputFile = await storeFile(outputs.answers, 'output');
      const errorFile = await storeFile(outputs.errors, 'error');
      const ended = { ...batch, outputFile, errorFile, at: { ...batch.at } };
      if (batch.status !== 'expired') setStatus(ended, left > 0 ? 'cancelled' : 'completed');
      await this.#records.save(ended);
      Object.assign(batch, { outputFile, errorFile, status: ended.status, at: ended.at });
    } catch (err) {
      this.#logger.error({ err, batch: id }, 'Cannot store the answers of a batch: trying again');
      setTimeout(() => void this.#finish(batch), retryStoreMs).unref();
      return;
    }
    this.#finishing.delete(batch);
    this.#files.release(id);
    batch.input = noInput;
    outputs.answers = [];
    outputs.errors = [];
  }
}

/** What the answers of a batch will need: about its input, and the text of typical answers. */
function reservedBytes({ length }: StoredBytes, total: number): number {
  return Math.min(length, total * answerBytes) + total * answerBytes;
}

function setStatus(batch: Batch, status: Status): void {
  batch.status = status;
  batch.at[status] = nowS();
}

function describe(batch: Batch) {
  const { id, request, createdS, errors, status, at, total, completed, failed } = batch;
  return {
    id,
    object: 'batch',
    endpoint: request.endpoint,
    errors: errors.length === 0 ? null : { object: 'list', data: errors },
    input_file_id: request.input_file_id,
    completion_window: request.completion_window,
    status,
    output_file_id: batch.outputFile ?? null,
    error_file_id: batch.errorFile ?? null,
    created_at: createdS,
    in_progress_at: at.in_progress ?? null,
    expires_at: createdS + windowMs / 1000,
    finalizing_at: at.completed ?? null,
    completed_at: at.completed ?? null,
    failed_at: at.failed ?? null,
    expired_at: at.expired ?? null,
    cancelling_at: at.cancelling ?? null,
    cancelled_at: at.cancelled ?? null,
    request_counts: { total, completed, failed },
    metadata: request.metadata ?? null,
  };
}
