// Batch jobs in the conductor: requests that nobody waits for, sent where prompts are computed as far as memory is idle there.

import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import { kvTokens, type RequestSize } from '../protocol/request-size.ts';
import type { Tracked } from './attempts.ts';

export interface BatchJobsConfig<Request> {
  readonly isJob: (request: Request) => boolean;
  /** Of what an instance holds, what jobs may promise to fill. */
  readonly memoryShare: number;
}

/** Instances as jobs see them. */
interface Cluster {
  readonly instances: number;
  readonly capacityTokens: (instance: InstanceIndex) => number;
  /** Is it there, and does it compute prompts? */
  readonly takes: (instance: InstanceIndex) => boolean;
}

interface Held<Request> {
  readonly tracked: Tracked<Request>;
  readonly request: Request;
}

const nobody: readonly never[] = [];

/**
 * A job is prefilled and decoded at one instance, below all who wait for answers: it is left out of the steps that need its time, and
 * loses its blocks to whoever needs them, there and then. Jobs that find no room are held here, in order.
 */
export class BatchJobs<Request> {
  readonly #config: BatchJobsConfig<Request> | undefined;
  readonly #cluster: Cluster;
  readonly #held = new Map<RequestId, Held<Request>>();
  /** (instances): tokens that its jobs may come to hold. */
  readonly #tokens: Float64Array;
  #freed = false;

  /** @param config undefined: no request is a job */
  constructor(config: BatchJobsConfig<Request> | undefined, cluster: Cluster) {
    this.#config = config;
    this.#cluster = cluster;
    this.#tokens = new Float64Array(cluster.instances);
  }

  isJob(request: Request): boolean {
    return this.#config?.isJob(request) === true;
  }

  /** Tokens of the largest that any instance would take; undefined when none is left. */
  get largestTokens(): number | undefined {
    let most: number | undefined;
    for (let i = 0; i < this.#tokens.length; i++)
      if (this.#cluster.takes(i)) most = Math.max(most ?? 0, this.#roomOf(i));
    return most;
  }

  #roomOf(instance: InstanceIndex): number {
    return Math.floor(this.#cluster.capacityTokens(instance) * (this.#config?.memoryShare ?? 0));
  }

  /** The least loaded of those with room for one more. @param waitUs (instances): predicted wait for a prefill */
  choose(size: RequestSize, waitUs: Float64Array): InstanceIndex | undefined {
    const tokens = kvTokens(size);
    let best: InstanceIndex | undefined;
    for (let i = 0; i < this.#tokens.length; i++) {
      if (!this.#cluster.takes(i) || this.#tokens[i] + tokens > this.#roomOf(i)) continue;
      if (best === undefined || waitUs[i] < waitUs[best]) best = i;
      else if (waitUs[i] === waitUs[best] && this.#tokens[i] < this.#tokens[best]) best = i;
    }
    return best;
  }

  /** Is anyone held, who is to come first? */
  get anyHeld(): boolean {
    return this.#held.size > 0;
  }

  /** Those that are held where no instance is left that could take them. */
  get heldInVain(): readonly RequestId[] {
    return this.largestTokens === undefined ? [...this.#held.keys()] : [];
  }

  hold(tracked: Tracked<Request>, request: Request): void {
    this.#held.set(tracked.id, { tracked, request });
  }

  isHeld(id: RequestId): boolean {
    return this.#held.has(id);
  }

  /** It is not held any more. */
  drop(id: RequestId): void {
    this.#held.delete(id);
  }

  /** Who is held, in order, if there may be room now that there was not before. */
  takeFreed(): Iterable<Held<Request>> {
    if (!this.#freed) return nobody;
    this.#freed = false;
    return this.#held.values();
  }

  /** It goes there: returns the tokens that it may come to hold. */
  add(instance: InstanceIndex, size: RequestSize): number {
    const tokens = kvTokens(size);
    this.#tokens[instance] = this.#tokens[instance] + tokens;
    return tokens;
  }

  /** It left. */
  remove(instance: InstanceIndex, tokens: number): void {
    this.#tokens[instance] = this.#tokens[instance] - tokens;
    this.#freed = true;
  }

  /** An instance takes jobs that did not. */
  joined(): void {
    this.#freed = true;
  }

  /** Throws unless these are the tokens of each instance's jobs, and whoever is held has no place. @param tokens (instances) */
  check(tokens: Float64Array): void {
    for (const { tracked } of this.#held.values())
      if (tracked.now !== undefined) throw new Error(`Batch jobs broken: job ${tracked.id} is held and runs`);
    const wrong = tokens.findIndex((count, i) => count !== this.#tokens[i]);
    if (wrong >= 0)
      throw new Error(
        `Batch jobs broken: instance ${wrong} has ${tokens[wrong]} tokens, counted ${this.#tokens[wrong]}`,
      );
  }
}
