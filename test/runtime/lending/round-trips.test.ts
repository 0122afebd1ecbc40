// Round trips to other lenders: measured by a connection, which is closed at once.
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { expect, it } from 'vitest';
import { RoundTrips } from '../../../src/runtime/lending/round-trips.ts';

it('measures lenders that accept connections, and leaves none open', async () => {
  const listener = createServer();
  const ended = new Promise<void>((resolve) => {
    listener.on('connection', (socket) => socket.resume().on('close', () => resolve()));
  });
  await once(listener.listen(0, '127.0.0.1'), 'listening');
  const { port } = listener.address() as AddressInfo;
  let trips: RoundTrips | undefined;
  const measured = await new Promise<readonly [peer: number, us: number]>((resolve) => {
    trips = new RoundTrips((peer, us) => resolve([peer, us]));
    // Nothing listens there.
    trips.add(4, '127.0.0.1:1');
    trips.add(3, `127.0.0.1:${port}`);
  });
  expect(measured).toEqual([3, expect.any(Number)]);
  await ended;
  trips?.close();
  listener.close();
});
