// What a session keeps of other processes: as much as membership remembers, however many come and go.
import { expect, it } from 'vitest';
import { rememberedMax } from '../../../src/core/membership/liveness.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { PeerSession } from '../../../src/runtime/processes/peer-session.ts';
import { encode } from '../../../src/runtime/wire/codec.ts';
import { readPeer } from '../../../src/runtime/wire/messages.ts';
import { statedVersions, wireVersion } from '../../../src/runtime/wire/versions.ts';
import { settled } from '../bus/settled.ts';

it('forgets the processes without a session that it has not seen for longest', async () => {
  const hub = new MemoryHub();
  const [bus, other] = [hub.connect(), hub.connect()];
  const refused: string[] = [];
  const session = new PeerSession(
    { bus, name: 'p', incarnation: 1, log: (line) => void refused.push(line.split(':')[0] ?? '') },
    'prefill',
    { readAnnouncement: readPeer, onJoined: () => {}, onLost: () => {}, onMessage: () => {} },
  );
  session.start();
  await settled();
  const announce = (name: string, version: number): void =>
    other.publish(
      'beat.decode',
      encode({ ...statedVersions({ min: version, max: version }), name, incarnation: 1, number: 1 }),
    );
  announce('alive', wireVersion);
  // Each is refused once, and then remembered as refused.
  for (let i = 0; i <= rememberedMax; i++) announce(`d${i}`, 1);
  await settled();
  expect(refused).toHaveLength(rememberedMax + 1);
  announce('d1', 1);
  announce('d0', 1);
  await settled();
  expect(refused.slice(rememberedMax + 1)).toEqual(['Refused d0']);
  session.close();
});
