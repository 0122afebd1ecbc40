// The state that a gateway keeps of its requests until they end, with scripted instances.
import { expect, it, vi } from 'vitest';
import type { GenerationRequest, InstanceSnapshot } from '../../../src/core/protocol/ports.ts';
import { TokenAdmission } from '../../../src/core/router/admission/token-admission.ts';
import { Conductor } from '../../../src/core/router/conductor.ts';
import { TokenPlacement } from '../../../src/core/router/placement/token-placement.ts';
import { tokenRequests } from '../../../src/core/router/token-requests.ts';
import { batchLimits } from '../../../src/core/scheduler/executor/token-limits.ts';
import { Alarm } from '../../../src/runtime/threads/alarm.ts';
import { ConductorDriver } from '../../../src/runtime/threads/conductor-driver.ts';
import { admitAll, liveRequest } from './instances.ts';

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '' };
const nothing = { events: [], prefilled: [], released: [], pins: [], kvEvents: [], kvSnapshot: undefined };

class Instances extends ConductorDriver {
  /** Running attempts, and their instances. */
  readonly forwarded = new Map<string, number>();
  /** A request that cannot be forwarded. */
  unforwardable = '';
  #incarnation = 1;

  constructor() {
    const placement = new TokenPlacement(new Uint32Array(4));
    placement.begin(root, [0, 0]);
    super({ placement, admission: new TokenAdmission(admitAll, 2, batchLimits), log: () => {} });
    this.startConductor(
      new Conductor<GenerationRequest>({
        instances: [{ capacityTokens: 1000 }, { capacityTokens: 1000 }],
        queueMax: 1000,
        requests: tokenRequests,
        placement: placement.config,
        admission: this.admission.config(placement.prefills),
        recordsPlacements: true,
        retries: { attemptsMax: 4 },
      }),
    );
  }

  instances(): readonly InstanceSnapshot[] {
    return [];
  }

  roles() {
    return ['mixed', 'mixed'] as const;
  }

  switchRole(): undefined {}

  protected notReadyReason(): undefined {}

  protected onRoleSwitched(): void {}

  protected forwardTo(instance: number, { id }: GenerationRequest): void {
    if (id === this.unforwardable) throw new Error('injected');
    this.forwarded.set(id, instance);
  }

  protected cancelAt(_: number, id: string): void {
    this.forwarded.delete(id);
  }

  protected requestSnapshotFrom(): void {}

  protected pinAt(): void {}

  protected unpinAt(): void {}

  answer(id: string, ...kinds: readonly ('started' | 'tokens' | 'finished')[]): void {
    const of = {
      started: { kind: 'started', cachedTokens: 0 },
      tokens: { kind: 'tokens', tokens: Int32Array.of(7), logprobs: undefined },
      finished: { kind: 'finished', reason: 'length' },
    } as const;
    this.onOutputs(this.forwarded.get(id) ?? 0, { ...nothing, events: kinds.map((kind) => [id, of[kind]]) });
    if (kinds.includes('finished')) this.forwarded.delete(id);
  }

  kill(instance: number): void {
    for (const [id, at] of this.forwarded) if (at === instance) this.forwarded.delete(id);
    this.feed({ kind: 'instanceFailed', instance });
    this.feed({ kind: 'instanceJoined', instance, incarnation: ++this.#incarnation, capacityTokens: 1000 });
  }
}

it('no state remains of requests that finished, were cancelled, or were lost with their instances', () => {
  const cluster = new Instances();
  let ended = 0;
  for (let round = 0; round < 200; round++) {
    const ids = Array.from({ length: 6 }, (_, i) => `r${round}-${i}`);
    for (const id of ids)
      cluster.submit(liveRequest(id, [1, 2, 3], 3), ({ kind }) => {
        if (kind === 'finished' || kind === 'failed') ended++;
      });
    const [answered = '', , cancelled = ''] = ids;
    cluster.answer(answered, 'started', 'tokens', 'tokens', 'tokens', 'finished');
    for (const id of ids.slice(1, 4)) cluster.answer(id, 'started', 'tokens');
    cluster.cancel(cancelled);
    // Some requests are lost before their first event, some after it; requests without attempts left fail.
    for (let kill = 0; kill < (round % 5) + 1; kill++) cluster.kill(kill % 2);
    for (const id of [...cluster.forwarded.keys()])
      cluster.answer(id, 'started', 'tokens', 'tokens', 'tokens', 'finished');
  }
  expect(ended).toBe(200 * 5);
  expect(cluster.inFlight).toEqual({ sinks: 0, attempts: 0, prefills: 0, outputs: 0 });
  // The traces of the latest requests remain.
  const ids = Array.from({ length: 200 * 6 }, (_, i) => `r${Math.floor(i / 6)}-${i % 6}`);
  expect(ids.filter((id) => cluster.requestTrace(id) !== undefined)).toHaveLength(1024);
});

it('the alarm and the remaining effects survive an effect that throws', () => {
  const alarms = vi.spyOn(Alarm.prototype, 'set');
  const cluster = new Instances();
  cluster.unforwardable = 'bad';
  alarms.mockClear();
  expect(() => cluster.submit(liveRequest('bad', [1, 2, 3], 3), () => {})).toThrow('injected');
  expect(alarms).toHaveBeenCalledOnce();
  // A cancel within a sink runs after the other effects of its event; only the outermost event does both.
  const ends: string[] = [];
  cluster.submit(liveRequest('good', [1, 2, 3], 3), ({ kind }) => {
    ends.push(kind);
    if (kind === 'accepted') cluster.cancel('good');
  });
  expect(ends).toEqual(['accepted']);
  expect(cluster.forwarded.has('good')).toBe(false);
  cluster.cancel('bad');
  expect(cluster.inFlight).toEqual({ sinks: 0, attempts: 0, prefills: 0, outputs: 0 });
  alarms.mockRestore();
});
