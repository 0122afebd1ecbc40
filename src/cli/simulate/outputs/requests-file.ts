// `kvasir simulate --requests-out`: a record of each request in the order in which they end, as CSV or JSON lines.
import { closeSync, openSync, writeSync } from 'node:fs';
import type { InstanceIndex } from '../../../core/protocol/ids.ts';
import { type RequestRecord, RequestRecorder } from '../../../sim/report/request-recorder.ts';

/** The columns of the CSV, in this order. */
const columns = [
  ...['index', 'arrivalMs', 'sloClass', 'tenant', 'priority', 'batch', 'promptTokens', 'outputTokens'],
  ...['outcome', 'returns', 'instance', 'decodeInstance', 'attempts', 'preemptions'],
  ...['cachedTokens', 'fetchedFrom', 'fetchedTokens'],
  ...['hitBlocks', 'neverSeenBlocks', 'evictedBlocks', 'elsewhereBlocks', 'partialBlocks'],
  ...['queueMs', 'ttftMs', 'tbtMs', 'tpotMs', 'e2eMs', 'predictedTtftMs', 'predictedTbtMs'],
] as const satisfies readonly (keyof RequestRecord)[];

/** Characters that are collected before they are written. */
const pieceLength = 2 ** 16;

export class RequestsFile {
  readonly recorder: RequestRecorder;
  readonly #file: number;
  readonly #instances: readonly string[];
  #pending = '';

  /** @param instances names by index @throws Error if the file cannot be written */
  constructor(path: string, instances: readonly string[]) {
    this.#instances = instances;
    this.#file = openSync(path, 'w');
    const isJson = path.endsWith('.jsonl');
    if (!isJson) this.#add(columns.join(','));
    this.recorder = new RequestRecorder((record) => this.#add(isJson ? this.#jsonOf(record) : this.#rowOf(record)));
  }

  close(): void {
    this.#flush();
    closeSync(this.#file);
  }

  #add(line: string): void {
    this.#pending += `${line}\n`;
    if (this.#pending.length >= pieceLength) this.#flush();
  }

  #flush(): void {
    writeSync(this.#file, this.#pending);
    this.#pending = '';
  }

  #jsonOf(record: RequestRecord): string {
    return JSON.stringify({ ...record, ...this.#namesOf(record) });
  }

  #rowOf(record: RequestRecord): string {
    const named = { ...record, ...this.#namesOf(record) };
    return columns.map((name) => quoted(String(named[name] ?? ''))).join(',');
  }

  #namesOf({ instance, decodeInstance, fetchedFrom }: RequestRecord) {
    const nameOf = (index: InstanceIndex | undefined) => (index === undefined ? undefined : this.#instances[index]);
    return {
      instance: nameOf(instance),
      decodeInstance: nameOf(decodeInstance),
      fetchedFrom: nameOf(fetchedFrom),
    };
  }
}

function quoted(text: string): string {
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
