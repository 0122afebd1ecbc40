// What must hold over a cluster's requests, whatever goes wrong: looked at after every event, and once all has come to rest.
import { type LengthInstance, LengthRequest } from '../../cluster/length-work.ts';
import type { ConductorEvent, InstanceIndex } from '../../cluster/messages.ts';
import { PrefixIndex, PrefixMatches } from '../../cluster/parts.ts';
import type { GenerationEvent, RequestId } from '../../cluster/ports.ts';
import { loadOf } from '../../cluster/refusals.ts';
import type { TraceRequest } from '../../trace/request.ts';
import { Float64Pool } from '../../util/float64-pool.ts';
import type { Simulation, SimulationConfig } from '../simulation.ts';
import { cycleOfWaits, waitsOf } from './waits.ts';

/** Between looks at what takes longer to look at. */
const lookUs = 50_000;
/**
 * What an instance has lost is named no longer than so many silences, and what a message takes: after one and a quarter, as far as the
 * conductor looks, the instance is given up or has reported what is missing; after as many again that is known, or nothing is.
 */
const staleSilences = 2 * 1.25;

export class RequestChecks {
  events = 0;
  readonly #timeoutUs: number;
  readonly #silentUs: number;
  /** The longest prompt of each family. */
  readonly #chains: readonly LengthRequest[];
  /** What instances themselves have told, none of it lost or late. */
  readonly #truth: PrefixIndex;
  readonly #held: PrefixMatches;
  #watching = false;
  #nextUs = 0;
  /** By instance, family and block: since when the index names what is not there. */
  #staleSince = new Map<string, number>();

  /** (instances): by request, when its cancel was heard there. */
  readonly #cancelled: readonly Map<RequestId, number>[];
  /** Every message arrives. */
  readonly #lossless: boolean;

  constructor({ instances, blockTokens, faults }: SimulationConfig, trace: readonly TraceRequest[]) {
    this.#cancelled = instances.map(() => new Map());
    this.#lossless = faults?.faults.some(({ kind }) => kind === 'loss' || kind === 'partition') !== true;
    this.#timeoutUs = faults?.times.timeoutUs ?? Number.POSITIVE_INFINITY;
    this.#silentUs = faults?.times.silentUs ?? 0;
    const longest = new Map<number, TraceRequest>();
    for (const request of trace)
      if (request.blocks.length > (longest.get(request.blocks[0])?.blocks.length ?? 0))
        longest.set(request.blocks[0], request);
    const gaps = new Float64Pool();
    this.#chains = [...longest.values()].map((request) => new LengthRequest(request, blockTokens, gaps));
    this.#truth = new PrefixIndex({ instances: instances.length, blocks: 64, remembered: 0 });
    this.#held = new PrefixMatches(instances.length);
  }

  /** After every event. */
  look(simulation: Simulation): void {
    this.events++;
    this.#watch(simulation);
    const { conductor } = simulation.inside;
    if (conductor.accepted !== simulation.live)
      throw new Error(`Requests broken: ${simulation.live} clients wait, ${conductor.accepted} requests are known`);
    if (simulation.nowUs < this.#nextUs) return;
    this.#nextUs = simulation.nowUs + lookUs;
    this.#checkAges(simulation);
    this.#checkNames(simulation);
    this.#checkWaits(simulation);
    this.#checkCancelled(simulation);
  }

  #watch(simulation: Simulation): void {
    const { inside } = simulation;
    const { faults } = inside;
    if (this.#watching || faults === undefined) return;
    this.#watching = true;
    faults.truth = {
      tell: (event) => this.#tell(event),
      told: (index, event) => {
        if (event.kind !== 'cancel') return;
        this.#cancelled[index].set(event.id, simulation.nowUs);
        checkGone(inside.instances[index], index, event.id);
      },
      lose: (instance, life) => {
        this.#cancelled[instance].clear();
        this.#truth.join(instance, life);
        this.#truth.restore(instance, { life, number: 0, blocks: 0, words: new Uint32Array(0) });
      },
    };
  }

  /** A client hears the last of its request: all of it, or a refusal that its own figures bear out. */
  ended({ id, outputs, outputTokens }: LengthRequest, event: GenerationEvent): void {
    if (event.kind === 'finished' && outputs !== outputTokens)
      throw new Error(`Requests broken: request ${id} ended with ${outputs} of ${outputTokens} tokens`);
    if (event.kind !== 'failed') return;
    const load = event.cause && loadOf(event.cause);
    if (load !== undefined && load <= 1)
      throw new Error(`Requests broken: request ${id} was refused at a load of ${load}: ${event.message}`);
    if (event.message.includes('not ended in time'))
      throw new Error(`Requests broken: request ${id} was given up: ${event.message}`);
  }

  #tell(event: ConductorEvent<LengthRequest>): void {
    if (event.kind === 'journal') this.#truth.apply(event.instance, event.journal);
    if (event.kind !== 'snapshot') return;
    this.#truth.join(event.instance, event.snapshot.life);
    this.#truth.restore(event.instance, event.snapshot);
  }

  /** Every request has its client's name in the conductor, and ends in time. */
  #checkAges({ nowUs, inside: { conductor, requests } }: Simulation): void {
    for (const { trace } of requests) {
      const id = String(trace.index);
      if (!conductor.has(id)) throw new Error(`Requests broken: request ${id} is forgotten`);
      if (nowUs - trace.arrivalUs > this.#timeoutUs + this.#silentUs)
        throw new Error(`Requests broken: request ${id} has not ended after ${(nowUs - trace.arrivalUs) / 1e6} s`);
    }
  }

  #checkNames({ nowUs, inside: { conductor, instances, faults } }: Simulation): void {
    const mostUs = staleSilences * this.#silentUs + (faults?.longestUs ?? 0);
    const since = new Map<string, number>();
    for (const [family, { chain }] of this.#chains.entries()) {
      const named = conductor.named(chain);
      if (named === undefined) return;
      this.#truth.match(chain, chain.blocks, this.#held);
      for (const instance of instances.keys()) {
        for (let block = this.#held.blocks[instance]; block < named[instance]; block++) {
          const key = `${instance} ${family} ${block}`;
          const sinceUs = this.#staleSince.get(key) ?? nowUs;
          since.set(key, sinceUs);
          if (nowUs - sinceUs > mostUs)
            throw new Error(
              `Requests broken: the index names block ${block} at instance ${instance}, which has not had it for ${(nowUs - sinceUs) / 1e6} s: at most ${mostUs / 1e6} s`,
            );
        }
      }
    }
    this.#staleSince = since;
  }

  /** What was cancelled does not come back; what others send for it ends when they hear so: one round trip after the cancel left. */
  #checkCancelled({ nowUs, inside: { instances, network, faults } }: Simulation): void {
    for (const [index, { roster, handOffs }] of instances.entries()) {
      const cancelled = this.#cancelled[index];
      if (cancelled.size === 0) continue;
      for (const { id } of roster.live) if (cancelled.has(id)) throw held(index, id);
      for (const { id } of handOffs.arrivals.all()) if (cancelled.has(id)) throw held(index, id);
    }
    for (const { kind, from, to, name } of network.transfers) {
      const heardUs = this.#cancelled[kind === 'prefix' ? to : from].get(name);
      if (heardUs === undefined || (kind === 'prefix' && !this.#lossless)) continue;
      if (nowUs > heardUs + (kind === 'prefix' ? (faults?.longestUs ?? 0) : 0)) throw held(from, name);
    }
  }

  #checkWaits({ inside: { instances } }: Simulation): void {
    const cycle = cycleOfWaits(waitsOf(instances));
    if (cycle !== undefined) throw new Error(`Requests broken: a cycle of waiting: ${cycle}`);
  }

  /** Nothing has gone wrong for a while: all have been answered, and nobody holds anything. */
  atRest({ nowUs, live, inside: { conductor, instances, network, requests, faults } }: Simulation): void {
    if (live > 0) {
      const ids = [...requests].map(({ id }) => id).join(', ');
      throw new Error(`Requests broken: ${live} requests have not ended at ${nowUs / 1e6} s: ${ids}`);
    }
    if (conductor.accepted > 0) throw new Error(`Requests broken: ${conductor.accepted} requests are known that ended`);
    if (network.size > 0) throw new Error(`Requests broken: ${network.size} streams have nobody`);
    for (const [i, { handOffs, roster }] of instances.entries()) {
      const used = instances[i].snapshot().pages.used;
      const left = roster.size + handOffs.arrivals.size + handOffs.departures.size;
      if (used + left > 0)
        throw new Error(
          `Requests broken: instance ${i} leaks: ${used} pages, ${roster.size} requests, ${handOffs.arrivals.size} arrivals, ${handOffs.departures.size} departures`,
        );
      if (faults?.isUp(i) === false) throw new Error(`Requests broken: instance ${i} has not come back`);
    }
  }
}

/** What is cancelled holds nothing, but for rows of the step that runs. */
function checkGone({ roster, handOffs }: LengthInstance, index: InstanceIndex, id: RequestId): void {
  const awaited = [...handOffs.arrivals.awaited()].includes(id) || handOffs.departures.has(id);
  if (awaited || roster.has(id)) throw held(index, id);
}

function held(index: InstanceIndex, id: RequestId): Error {
  return new Error(`Requests broken: instance ${index} holds request ${id}, which is cancelled`);
}
