// The native messengers keep the contract, between two pools of one process: copying, as between processes of a host, and over tcp, on good lines and bad ones.
import { createServer } from 'node:net';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import type { Engine } from '../../src/engine/engine.ts';
import { loadModel } from '../../src/engine/load-model.ts';
import { NativeMessenger } from '../../src/kernel/native/messenger.ts';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { NativeRemoteMessenger } from '../../src/kernel/native/remote-messenger.ts';
import type { Messenger } from '../../src/runtime/transfer/messenger.ts';
import { TcpProxy } from '../runtime/bus/tcp-proxy.ts';
import { enginePages } from './engine-pages.ts';
import { type MessengerEnd, messengerContract } from './messenger.ts';

const path = fileURLToPath(new URL('../../models/kvasir-tiny/kvasir-tiny-q8_0.gguf', import.meta.url));

function open(create: (engine: Engine, wake: () => void) => Messenger): readonly [MessengerEnd, MessengerEnd] {
  const backend = createNativeBackend({ threads: 1 });
  const model = loadModel({ model: path, backend, context: 64 });
  const end = (): MessengerEnd => {
    const { pool, engine } = enginePages(model, backend);
    let ring: (() => void) | undefined;
    const messenger = create(engine, () => ring?.());
    const awaken = (): Promise<void> =>
      new Promise((resolve) => {
        ring = resolve;
        // What came before this asks again.
        setImmediate(resolve);
      });
    return { pool, messenger, awaken };
  };
  return [end(), end()];
}

if (loadNative() === undefined) describe.skip('the native messengers: the kernels are not compiled', () => {});
else {
  messengerContract('the native messenger', () => open(({ pool }, wake) => new NativeMessenger(pool, wake)));
  const tcp = { host: '127.0.0.1', token: 'a secret', transport: 'tcp' } as const;
  messengerContract('the native messenger over tcp', () =>
    open(({ pool }, wake) => new NativeRemoteMessenger(pool, tcp, wake)),
  );
  messengerContract('the native messenger over shared memory', () =>
    open(({ pool }, wake) => new NativeRemoteMessenger(pool, { ...tcp, transport: 'shared' }, wake)),
  );

  let target = '';
  const proxy = await TcpProxy.start(() => target);
  afterAll(() => proxy.stop());
  /** Its landings are reached through the proxy. */
  const behindProxy = (far: NativeRemoteMessenger): Messenger => {
    const shown = (landing: string): string => landing.replace(/:\d+/, `:${new URL(proxy.url).port}`);
    return {
      get counts() {
        return far.counts;
      },
      get nextStep() {
        return far.nextStep;
      },
      open: (pages, layers) => {
        const landing = far.open(pages, layers);
        target = `tcp://${landing.split('/')[0]}`;
        return shown(landing);
      },
      arrivals: (landing, blocks) => far.arrivals(landing, blocks),
      close: (landing) => far.close(landing),
      received: () => far.received().map(shown),
      unreachable: () => far.unreachable(),
      send: (landing, step, parcels, last) => far.send(landing, step, parcels, last),
      stop: (landing) => far.stop(landing),
      pending: (landing) => far.pending(landing),
      transportTo: (landing) => far.transportTo(landing),
    };
  };
  describe('behind a proxy', () => {
    const ends = open(({ pool }, wake) => behindProxy(new NativeRemoteMessenger(pool, tcp, wake)));
    proxy.delay(2);
    messengerContract('the native messenger over a tcp line that is slow', () => ends);

    it('brings all pages over one that loses and breaks', async () => {
      const [sender, receiver] = ends;
      const [first, second] = sender.pool.blocks;
      const pages = [...first, ...second];
      const parcels = Int32Array.from(pages.flatMap((page, place) => [place % first.length, page, place]));
      sender.pool.step();
      proxy.lose(0.1);
      for (let round = 0; round < 2; round++) {
        const to = Int32Array.from(pages, (_, place) => receiver.pool.pages - 1 - place);
        for (const page of to) receiver.pool.write(page, receiver.pool.read(page).fill(7));
        const landing = receiver.messenger.open(to);
        sender.messenger.send(landing, 0, parcels, true);
        if (round === 1) {
          proxy.cut(true);
          await new Promise((resolve) => setImmediate(resolve));
          proxy.cut(false);
        }
        while (receiver.messenger.received().length === 0) await receiver.awaken();
        for (const [place, page] of pages.entries())
          expect(receiver.pool.read(to[place] ?? -1)).toEqual(sender.pool.read(page));
        receiver.messenger.close(landing);
      }
      expect(sender.messenger.counts.faults).toBeGreaterThan(0);
    });
  });

  it('tells which landings it has given up, and sends them nothing more until they are stopped', async () => {
    const [sender, receiver] = open(
      ({ pool }, wake) => new NativeRemoteMessenger(pool, { ...tcp, giveUpMs: 100 }, wake),
    );
    const landing = receiver.messenger.open(Int32Array.of(0, 1));
    const gone = landing.replace(/:\d+/, `:${await closedPort()}`);
    const page = Int32Array.of(0, 0, 0);
    sender.messenger.send(gone, 0, page, false);
    const told = async (): Promise<readonly string[]> => {
      for (;;) {
        const all = sender.messenger.unreachable();
        if (all.length > 0) return all;
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    };
    expect(await told()).toEqual([gone]);
    sender.messenger.send(gone, 0, page, true);
    expect(sender.messenger.unreachable()).toEqual([]);
    expect(sender.messenger.counts).toMatchObject({ faults: 1, pages: 0 });
    sender.messenger.stop(gone);
    sender.messenger.send(gone, 0, page, true);
    expect(await told()).toEqual([gone]);
    sender.messenger.send(landing, 0, page, true);
    while (receiver.messenger.received().length === 0) await receiver.awaken();
  });
}

/** An address without a listener. */
function closedPort(): Promise<number> {
  return new Promise((resolve) => {
    const probe = createServer().listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 1));
    });
  });
}
