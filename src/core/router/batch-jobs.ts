// Batch jobs: requests without a latency objective, placed on instances that compute prompts and have unused memory.

import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import { kvTokens, type RequestSize } from '../protocol/request-size.ts';
import type { InstanceFilter, TrackedRequest } from './attempts.ts';
import type { ConductorContext } from './conductor-context.ts';

interface HeldJob<Request> {
  readonly tracked: TrackedRequest<Request>;
  readonly request: Request;
}

const none: readonly never[] = [];

/**
 * One instance prefills and decodes a job, below all interactive requests: a step without spare time has no rows of it, and it is preempted
 * at once when another request needs its blocks. Jobs without memory are held here, in order of arrival.
 */
export class BatchJobs<Request extends { readonly id: RequestId }> {
  readonly #context: ConductorContext<Request>;
  /** Accepted jobs that have not ended. */
  readonly #open = new Set<RequestId>();
  readonly #held = new Map<RequestId, HeldJob<Request>>();
  /** (instances): tokens that its jobs reserve. */
  readonly #tokens: Float64Array;
  /** Memory was released since the held jobs were last tried. */
  #released = false;

  constructor(context: ConductorContext<Request>) {
    this.#context = context;
    this.#tokens = new Float64Array(context.instances.count);
  }

  isJob(request: Request): boolean {
    const { batchJobs, requests } = this.#context.config;
    return batchJobs !== undefined && requests.isBatchJob(request);
  }

  /** Tokens of the largest job that any instance accepts; undefined when no instance is up. */
  get largestTokens(): number | undefined {
    let largest: number | undefined;
    for (let i = 0; i < this.#tokens.length; i++)
      if (this.#takesJobs(i)) largest = Math.max(largest ?? 0, this.#capacityTokens(i));
    return largest;
  }

  #takesJobs(instance: InstanceIndex): boolean {
    const { instances } = this.#context;
    return instances.computesPrompts(instance) && instances.isUp(instance);
  }

  #capacityTokens(instance: InstanceIndex): number {
    const { config, instances } = this.#context;
    return Math.floor(instances.at(instance).capacityTokens * (config.batchJobs?.memoryShare ?? 0));
  }

  /** The least loaded instance with memory for one more job. @param waitUs (instances): predicted wait for a prefill @param except is not chosen */
  choose(size: RequestSize, waitUs: Float64Array, except?: InstanceFilter): InstanceIndex | undefined {
    const tokens = kvTokens(size);
    let best: InstanceIndex | undefined;
    for (let i = 0; i < this.#tokens.length; i++) {
      if (!this.#takesJobs(i) || except?.has(i) === true || this.#tokens[i] + tokens > this.#capacityTokens(i))
        continue;
      if (best === undefined || waitUs[i] < waitUs[best]) best = i;
      else if (waitUs[i] === waitUs[best] && this.#tokens[i] < this.#tokens[best]) best = i;
    }
    return best;
  }

  /** True while jobs are held: a new job then waits behind them. */
  get anyHeld(): boolean {
    return this.#held.size > 0;
  }

  /** Held jobs when no instance is left that could run them. */
  get unservable(): readonly RequestId[] {
    return this.largestTokens === undefined ? [...this.#held.keys()] : [];
  }

  hold(tracked: TrackedRequest<Request>, request: Request): void {
    this.#held.set(tracked.id, { tracked, request });
  }

  isHeld(id: RequestId): boolean {
    return this.#held.has(id);
  }

  /** The job runs. */
  unhold(id: RequestId): void {
    this.#held.delete(id);
  }

  /** Number of accepted jobs that have not ended. */
  get openCount(): number {
    return this.#open.size;
  }

  accepted(id: RequestId): void {
    this.#open.add(id);
  }

  /** The request, a job or not, has ended. */
  ended(id: RequestId): void {
    this.#open.delete(id);
    this.#held.delete(id);
  }

  /** The held jobs, in order, when memory was released since the last call. */
  takeRetryable(): Iterable<HeldJob<Request>> {
    if (!this.#released) return none;
    this.#released = false;
    return this.#held.values();
  }

  /** Returns the tokens that the job reserves. */
  reserve(instance: InstanceIndex, size: RequestSize): number {
    const tokens = kvTokens(size);
    this.#tokens[instance] = this.#tokens[instance] + tokens;
    return tokens;
  }

  release(instance: InstanceIndex, tokens: number): void {
    this.#tokens[instance] = this.#tokens[instance] - tokens;
    this.#released = true;
  }

  /** One more instance takes jobs. */
  instanceJoined(): void {
    this.#released = true;
  }

  /** Throws unless instances reserve these tokens, and no held job has an attempt. @param tokens (instances) */
  check(tokens: Float64Array): void {
    for (const { tracked } of this.#held.values())
      if (tracked.attempt !== undefined) throw new Error(`Batch jobs broken: job ${tracked.id} is held and runs`);
    for (const id of this.#open)
      if (!this.#context.requests.has(id)) throw new Error(`Batch jobs broken: job ${id} has ended and is counted`);
    const wrong = tokens.findIndex((count, i) => count !== this.#tokens[i]);
    if (wrong >= 0)
      throw new Error(
        `Batch jobs broken: instance ${wrong} has ${tokens[wrong]} tokens, counted ${this.#tokens[wrong]}`,
      );
  }
}
