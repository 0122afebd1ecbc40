// The port that receives pages: it greets as probes expect, and connections without the token take few of its places.
import { connect, type Socket } from 'node:net';
import { expect, test } from 'vitest';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { NativeRemoteMessenger } from '../../src/kernel/native/remote-messenger.ts';
import { probePages } from '../../src/runtime/transfer/page-reachability.ts';

/** Connections that have not proved the token, at most, and how long each may take. */
const [unprovenMax, handshakeMs] = [32, 3_000];

test.skipIf(loadNative() === undefined)(
  'answers probes, and closes connections above the share of unproven ones',
  async () => {
    const backend = createNativeBackend({ threads: 1 });
    const pool = backend.createKvPool({ pages: 1, kvHeads: 1, headDim: 2, type: 'f32' });
    const messenger = new NativeRemoteMessenger(
      pool,
      { host: '127.0.0.1', token: 'a token', transport: 'tcp' },
      () => {},
    );
    expect(await probePages(messenger.address)).toBeUndefined();
    const port = Number(messenger.address.split(':')[1]);
    const startedMs = performance.now();
    const sockets: Socket[] = [];
    const first = await new Promise<number>((resolve) => {
      const open = (i: number): void => {
        if (i > unprovenMax + 1) return;
        const socket = connect(port, '127.0.0.1', () => open(i + 1));
        sockets.push(socket);
        socket.on('error', () => {}).on('close', () => resolve(i));
        socket.resume();
      };
      open(0);
    });
    // On a machine that is too slow the first connection runs out of time.
    if (performance.now() - startedMs < handshakeMs) expect(first).toBeGreaterThanOrEqual(unprovenMax - 1);
    for (const socket of sockets) socket.destroy();
    messenger.free();
    backend.close();
  },
);
