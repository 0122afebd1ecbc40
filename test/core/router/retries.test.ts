// Requests of failed instances: they continue on another instance with the same tokens, and clients receive each token once.

import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { ConductorEvent } from '../../../src/core/protocol/events.ts';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { GenerationEvent, GenerationRequest } from '../../../src/core/protocol/ports.ts';
import { Conductor } from '../../../src/core/router/conductor.ts';
import type { FailureDetection } from '../../../src/core/router/conductor-config.ts';
import { InstanceTable } from '../../../src/core/router/instance-table.ts';
import { tokenRequests } from '../../../src/core/router/token-requests.ts';
import { greedy, promptOf, request, World } from '../instance-world.ts';

/** A conductor over real instances, any of which may fail and join again. */
class Cluster {
  readonly worlds: (World | undefined)[];
  readonly conductor: Conductor<GenerationRequest>;
  readonly received = new Map<string, GenerationEvent[]>();
  /** Number of events that the conductor has received, by their lists. */
  readonly #delivered = new Map<readonly GenerationEvent[], number>();
  #incarnation = 0;

  constructor(instances: number, attemptsMax: number, detection?: FailureDetection, requestTimeoutUs?: number) {
    this.worlds = Array.from({ length: instances }, () => new World({ pages: 60 }));
    this.conductor = new Conductor<GenerationRequest>({
      requests: tokenRequests,
      queueMax: 100,
      instances: this.worlds.map(() => ({ capacityTokens: 1900 })),
      retries: { attemptsMax, detection, requestTimeoutUs },
    });
  }

  deliver(event: ConductorEvent, nowUs = 0): void {
    for (const effect of this.conductor.step(nowUs, event)) {
      if (effect.kind === 'forward') this.worlds[effect.instance]?.submit(effect.request);
      if (effect.kind === 'cancel') this.worlds[effect.instance]?.cancel(effect.id);
      if (effect.kind === 'emit') this.received.set(effect.id, [...(this.received.get(effect.id) ?? []), effect.event]);
    }
    this.conductor.check();
  }

  step(instance: number): void {
    const world = this.worlds[instance];
    if (world?.running !== undefined) world.finishStep();
    this.#deliverEvents();
  }

  /** Delivers the events of the instances to the conductor. */
  #deliverEvents(): void {
    for (const [instance, world] of this.worlds.entries()) {
      for (const [id, { events }] of world?.received ?? []) {
        for (let at = this.#delivered.get(events) ?? 0; at < events.length; at++)
          this.deliver({ kind: 'generationEvent', instance, id, event: events[at] as GenerationEvent });
        this.#delivered.set(events, events.length);
      }
    }
  }

  fail(instance: number): void {
    this.worlds[instance] = undefined;
    this.deliver({ kind: 'instanceFailed', instance });
  }

  join(instance: number): void {
    this.worlds[instance] = new World({ pages: 60 });
    this.deliver({ kind: 'instanceJoined', instance, incarnation: ++this.#incarnation });
  }

  finishAll(): void {
    while (this.worlds.some((world) => world?.running !== undefined))
      for (const instance of this.worlds.keys()) this.step(instance);
  }
}

const tokensOf = (events: readonly GenerationEvent[] = []): number[] =>
  events.flatMap((event) => (event.kind === 'tokens' ? [...event.tokens] : []));

const requests = [
  request('plain', promptOf(1, 70), { maxTokens: 40 }),
  request('sampled', promptOf(2, 90), {
    maxTokens: 30,
    sampling: { ...greedy, temperature: 1, seed: [3, 4], repetitionPenalty: 1.2 },
  }),
  request('scored', promptOf(3, 50), { maxTokens: 20, sampling: { ...greedy, topLogprobs: 2, promptLogprobs: true } }),
];

test('whichever instances fail, clients receive the same output, each token once', () => {
  const alone = new World();
  alone.submit(...requests);
  alone.finishAll();
  const action = fc.oneof(
    { weight: 8, arbitrary: fc.record({ kind: fc.constant('step' as const), instance: fc.nat(2) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant('fail' as const), instance: fc.nat(2) }) },
  );
  let retried = 0;
  fc.assert(
    fc.property(fc.array(action, { minLength: 5, maxLength: 90 }), (actions) => {
      const cluster = new Cluster(3, 100);
      for (const one of requests) cluster.deliver({ kind: 'submit', request: one });
      for (const { kind, instance } of actions) {
        if (kind === 'step') cluster.step(instance);
        else if (cluster.worlds.filter((world) => world !== undefined).length > 1) cluster.fail(instance);
        else if (cluster.worlds[instance] === undefined) cluster.join(instance);
      }
      cluster.finishAll();
      for (const { id } of requests) {
        const events = cluster.received.get(id) ?? [];
        const expected = alone.of(id).events;
        expect(tokensOf(events)).toEqual(tokensOf(expected));
        const scored = (list: readonly GenerationEvent[]) =>
          list.reduce((sum, event) => sum + (event.kind === 'prompt-logprobs' ? event.logprobs.logprobs.length : 0), 0);
        expect(scored(events)).toBe(scored(expected));
        expect(events.at(-1)).toEqual(expected.at(-1));
        const kinds = events.map(({ kind }) => kind);
        for (const kind of ['accepted', 'started', 'finished'])
          expect(kinds.filter((other) => other === kind)).toHaveLength(1);
        for (const world of cluster.worlds) retried += Number(world?.received.has(`${id}~2`) ?? false);
      }
      expect(cluster.conductor.accepted).toBe(0);
    }),
    { numRuns: 60 },
  );
  expect(retried).toBeGreaterThan(10);
});

test('bounds the attempts of a request, and names the last failure in the error', () => {
  const cluster = new Cluster(3, 2);
  cluster.deliver({ kind: 'submit', request: requests[0] as GenerationRequest });
  cluster.fail(0);
  cluster.fail(1);
  expect(cluster.received.get('plain')?.at(-1)).toMatchObject({
    code: 'ENGINE_FAILED',
    message: 'Cannot generate: the instance stopped: tried 2 times',
  });
});

test('with failure detection a request waits for an instance to join, up to its timeout', () => {
  const cluster = new Cluster(1, 9, { reportTimeoutUs: 1_000_000, requestTimeoutUs: 5_000_000 });
  cluster.deliver({ kind: 'submit', request: requests[0] as GenerationRequest });
  cluster.step(0);
  cluster.fail(0);
  expect(cluster.received.get('plain')?.at(-1)?.kind).toBe('tokens');
  cluster.join(0);
  cluster.finishAll();
  expect(tokensOf(cluster.received.get('plain'))).toHaveLength(40);
  cluster.deliver({ kind: 'submit', request: requests[1] as GenerationRequest });
  cluster.fail(0);
  while (cluster.conductor.nextUs <= 6_000_000) cluster.deliver({ kind: 'wake' }, cluster.conductor.nextUs);
  expect(cluster.received.get('sampled')?.at(-1)).toMatchObject({
    message: 'Cannot generate: it has not ended in time: 5 s, attempts: 2',
  });
});

test('without failure detection a request fails at its time limit alone', () => {
  const cluster = new Cluster(1, 2, undefined, 5_000_000);
  cluster.deliver({ kind: 'submit', request: requests[0] as GenerationRequest });
  cluster.deliver({ kind: 'wake' }, 4_900_000);
  expect(cluster.received.get('plain')?.map(({ kind }) => kind)).toEqual(['accepted']);
  cluster.deliver({ kind: 'wake' }, cluster.conductor.nextUs);
  expect(cluster.received.get('plain')?.at(-1)).toMatchObject({
    message: 'Cannot generate: it has not ended in time: 5 s, attempts: 1',
  });
});

test('retries unreported requests, declares silent instances failed, and cancels their attempts when they report again', () => {
  const cluster = new Cluster(2, 9, { reportTimeoutUs: 1_000_000, requestTimeoutUs: 60_000_000 });
  const report = (instance: number, number: number, ids: readonly string[], nowUs: number) => {
    const named = ids.map((id) => ({ id, outputs: 0, receiving: false }));
    cluster.deliver(
      { kind: 'report', instance, report: { incarnation: 0, number, kvEventNumber: 0, requests: named } },
      nowUs,
    );
  };
  cluster.deliver({ kind: 'submit', request: requests[0] as GenerationRequest });
  report(0, 1, ['plain'], 200_000);
  report(1, 1, [], 200_000);
  // The instance has lost the request.
  for (const nowUs of [500_000, 1_000_000]) {
    report(0, nowUs / 10_000, [], nowUs);
    report(1, nowUs / 10_000, [], nowUs);
  }
  cluster.deliver({ kind: 'wake' }, 1_300_000);
  const holders = () => cluster.worlds.map((world) => [...(world?.received.keys() ?? [])]);
  expect(holders()).toEqual([['plain', 'plain~2'], []]);
  // The instance sends no further heartbeats.
  report(1, 200, [], 2_400_000);
  cluster.deliver({ kind: 'wake' }, 2_400_000);
  expect(holders()).toEqual([['plain', 'plain~2'], ['plain~3']]);
  const has = (id: string) =>
    cluster.worlds[0]?.instance.snapshot().running !== 0 && cluster.worlds[0]?.received.has(id);
  expect(has('plain~2')).toBe(true);
  report(0, 300, ['plain~2'], 2_500_000);
  cluster.finishAll();
  expect(tokensOf(cluster.received.get('plain'))).toHaveLength(40);
  // Late and duplicate heartbeats change nothing.
  report(0, 300, ['unknown'], 2_600_000);
});

/** A conductor over instances with roles and kernels; the instances of each attempt, in order. */
function routed(roles: readonly InstanceRole[], kernels: readonly (string | undefined)[]) {
  const conductor = new Conductor<GenerationRequest>({
    requests: tokenRequests,
    queueMax: 100,
    instances: roles.map((role) => ({ capacityTokens: 1900, role, absent: true })),
    retries: { attemptsMax: 9, detection: { reportTimeoutUs: 1e9, requestTimeoutUs: 1e9 } },
  });
  const routes: (readonly [number, number | undefined])[] = [];
  let incarnation = 0;
  const deliver = (event: ConductorEvent): void => {
    for (const effect of conductor.step(0, event))
      if (effect.kind === 'forward') routes.push([effect.instance, effect.decodeAt]);
    conductor.check();
  };
  const join = (instance: number): void =>
    deliver({ kind: 'instanceJoined', instance, incarnation: ++incarnation, kernels: kernels[instance] });
  for (const instance of roles.keys()) join(instance);
  return { conductor, routes, deliver, join };
}

const started = { kind: 'started', cachedTokens: 0 } as const;
const firstToken = { kind: 'tokens', tokens: Int32Array.of(7), logprobs: undefined } as const;

test('a request whose client has tokens continues only on kernels that compute the same bits', () => {
  const { routes, deliver, join } = routed(['mixed', 'mixed', 'mixed'], ['amx', 'avx2', 'amx']);
  deliver({ kind: 'submit', request: request('a', promptOf(1, 40), { maxTokens: 9 }) });
  deliver({ kind: 'submit', request: request('b', promptOf(2, 40), { maxTokens: 9 }) });
  expect(routes).toEqual([
    [0, undefined],
    [1, undefined],
  ]);
  deliver({ kind: 'generationEvent', instance: 0, id: 'a', event: started });
  deliver({ kind: 'generationEvent', instance: 0, id: 'a', event: firstToken });
  deliver({ kind: 'instanceFailed', instance: 0 });
  deliver({ kind: 'instanceFailed', instance: 2 });
  // The request waits for an instance with the kernels that have computed its tokens.
  expect(routes.slice(2)).toEqual([[2, undefined]]);
  join(0);
  expect(routes.slice(3)).toEqual([[0, undefined]]);
  // A request without tokens continues anywhere.
  deliver({ kind: 'instanceFailed', instance: 1 });
  expect(routes.slice(4)).toEqual([[0, undefined]]);
});

test('without kernels of their own, instances continue the requests of one another', () => {
  const { routes, deliver } = routed(['mixed', 'mixed'], [undefined, undefined]);
  deliver({ kind: 'submit', request: request('a', promptOf(1, 40), { maxTokens: 9 }) });
  deliver({ kind: 'generationEvent', instance: 0, id: 'a', event: firstToken });
  deliver({ kind: 'instanceFailed', instance: 0 });
  expect(routes).toEqual([
    [0, undefined],
    [1, undefined],
  ]);
});

test('new requests avoid an instance whose step is overdue, as long as another can serve them', () => {
  const { routes, deliver } = routed(['mixed', 'mixed'], [undefined, undefined]);
  const submit = (id: string): void =>
    deliver({ kind: 'submit', request: request(id, promptOf(1, 40), { maxTokens: 9 }) });
  deliver({ kind: 'overdue', instance: 0, isOverdue: true });
  for (const id of ['a', 'b', 'c']) submit(id);
  expect(routes).toEqual(Array(3).fill([1, undefined]));
  deliver({ kind: 'overdue', instance: 1, isOverdue: true });
  submit('d');
  expect(routes[3]).toEqual([0, undefined]);
  // It has the fewest requests, and its step has ended.
  deliver({ kind: 'overdue', instance: 0, isOverdue: false });
  submit('e');
  expect(routes[4]).toEqual([0, undefined]);
});

test('an overdue instance that joins again takes requests, and one that decodes is avoided as well', () => {
  const { routes, deliver, join } = routed(['prefill', 'decode', 'decode'], []);
  const submit = (id: string): void =>
    deliver({ kind: 'submit', request: request(id, promptOf(1, 40), { maxTokens: 9 }) });
  deliver({ kind: 'overdue', instance: 1, isOverdue: true });
  for (const id of ['a', 'b']) submit(id);
  expect(routes).toEqual(Array(2).fill([0, 2]));
  deliver({ kind: 'instanceFailed', instance: 1 });
  join(1);
  submit('c');
  expect(routes[2]).toEqual([0, 1]);
});

test('an overdue instance counts as overdue only while it is up, and again once it is', () => {
  const instances = new InstanceTable(Array.from({ length: 2 }, () => ({ capacityTokens: 100 })));
  instances.setOverdue(1, true);
  expect([...instances.overdue]).toEqual([1]);
  instances.health.setFailed(1);
  expect(instances.overdue.size).toBe(0);
  instances.health.reported(0, 1, { incarnation: 0, number: 1, kvEventNumber: 0, requests: [] });
  expect([...instances.overdue]).toEqual([1]);
  instances.setOverdue(1, false);
  expect(instances.overdue.size).toBe(0);
});

test('no prompt goes to a pair of instances that cannot transfer it; requests wait until a pair can', () => {
  const { routes, deliver } = routed(['prefill', 'prefill', 'decode', 'decode'], []);
  deliver({ kind: 'unreachable', instance: 0, peers: [2, 3] });
  deliver({ kind: 'unreachable', instance: 1, peers: [2] });
  for (const id of ['a', 'b', 'c', 'd'])
    deliver({ kind: 'submit', request: request(id, promptOf(1, 40), { maxTokens: 9 }) });
  expect(routes).toEqual(Array(4).fill([1, 3]));
  // One output token needs no transfer.
  deliver({ kind: 'submit', request: request('one', promptOf(1, 40), { maxTokens: 1 }) });
  expect(routes.at(-1)).toEqual([0, undefined]);
  deliver({ kind: 'instanceFailed', instance: 3 });
  expect(routes).toHaveLength(5);
  deliver({ kind: 'unreachable', instance: 0, peers: [] });
  expect(routes.slice(5)).toEqual(Array(4).fill([0, 2]));
});
