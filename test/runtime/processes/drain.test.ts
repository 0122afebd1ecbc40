// Rolling restarts and upgrades: instances that drain finish their requests, and releases with a common wire version work together.
import { expect, it } from 'vitest';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import type { JoinedInstance } from '../../../src/runtime/processes/join.ts';
import { PeerSession } from '../../../src/runtime/processes/peer-session.ts';
import { type PeerAnnouncement, readPeer } from '../../../src/runtime/wire/messages.ts';
import { type WireVersions, wireVersion } from '../../../src/runtime/wire/versions.ts';
import { type Answer, answerOf, livePrompt, liveRequest } from '../threads/instances.ts';
import { busMembers, serving, until } from './bus-members.ts';
import { UnreliableBus } from './unreliable-bus.ts';

const members = busMembers();

it('a rolling restart of all instances under load fails and repeats no request', async () => {
  const hub = new MemoryHub();
  const log: string[] = [];
  const gateway = await members.gateway(hub.connect(), { log: (line) => void log.push(line) });
  const start = (name: string): Promise<JoinedInstance> => members.instance(hub.connect(), name);
  const running = new Map(await Promise.all(['a', 'b'].map(async (name) => [name, await start(name)] as const)));
  await until(() => serving(gateway) === 2);
  const answers: Promise<Answer>[] = [];
  // Two requests run at any time, until all instances are restarted.
  let restarted = false;
  const client = async (own: string): Promise<void> => {
    for (let i = 0; !restarted; i++) {
      const answer = answerOf(gateway, liveRequest(`${own}${i}`, livePrompt(i, 40), 30));
      answers.push(answer);
      await answer;
    }
  };
  const clients = Promise.all(['c', 'd'].map(client));
  for (const [name, instance] of running) {
    const before = answers.length;
    await until(() => answers.length > before + 1);
    expect(await instance.drain(1_000_000)).toBe(true);
    await instance.close();
    await start(name);
    await until(() => log.filter((line) => line.startsWith(`Instance ${name} has joined`)).length === 2);
  }
  restarted = true;
  await clients;
  expect(new Set((await Promise.all(answers)).map(({ end }) => end.kind))).toEqual(new Set(['finished']));
  for (const name of running.keys()) expect(log).toContain(`Instance ${name} drains: 1 serve`);
  for (const own of ['c', 'd'])
    for (let i = 0; gateway.requestTrace(`${own}${i}`) !== undefined; i++)
      expect(gateway.requestTrace(`${own}${i}`)?.placements).toHaveLength(1);
});

it('an instance whose request does not end in time leaves after the time', async () => {
  const hub = new MemoryHub();
  const gateway = await members.gateway(hub.connect());
  const instance = await members.instance(hub.connect(), 'a', { settings: { contextTokens: 4096 } });
  await until(() => serving(gateway) === 1);
  gateway.submit(liveRequest('long', livePrompt(1, 40), 4000), () => {});
  expect(await instance.drain(0)).toBe(false);
});

it('an instance without a connection to its gateways leaves at once', async () => {
  const hub = new MemoryHub();
  const gateway = await members.gateway(hub.connect());
  const bus = new UnreliableBus(hub.connect());
  const instance = await members.instance(bus, 'a', { settings: { contextTokens: 4096 } });
  await until(() => serving(gateway) === 1);
  gateway.submit(liveRequest('long', livePrompt(1, 40), 4000), () => {});
  bus.setConnected(false);
  expect(await instance.drain(1_000_000)).toBe(true);
});

const [current, next] = [wireVersion, wireVersion + 1];

it.each([
  ['work together with overlapping ranges', { min: current, max: next }, { min: next, max: next + 12 }, 'joined'],
  [
    'refuse each other without a common version, in one line',
    ...[
      { min: current, max: current },
      { min: next, max: next + 1 },
    ],
    `Refused b: its wire version is ${next} to ${next + 1}, that of this process ${current}`,
  ],
] as const)('processes of two releases %s', async (_, own, theirs, expected) => {
  const hub = new MemoryHub();
  const log: string[] = [];
  const start = (name: string, versions: WireVersions): PeerSession<PeerAnnouncement> => {
    const line = (text: string): void => void (name === 'a' && log.push(text));
    const process = { bus: hub.connect(), name, incarnation: 1, log: line, versions };
    const session = new PeerSession<PeerAnnouncement>(process, 'fetcher', {
      readAnnouncement: readPeer,
      onJoined: () => line('joined'),
      onLost: () => {},
      onMessage: (_, message) => line(`received ${message}`),
    });
    members.closes(() => session.close());
    session.start();
    return session;
  };
  start('a', own);
  start('b', theirs);
  await until(() => log.length > 0);
  expect(log).toEqual([expected]);
});
