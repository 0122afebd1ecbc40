// The contract of messengers for the native ones: copies between two pools of a process, and shared memory, TCP and
// emulated RDMA between processes, over reliable and faulty connections.
import { createServer } from 'node:net';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import type { Engine } from '../../src/engine/engine.ts';
import { loadModel } from '../../src/engine/load-model.ts';
import { NativeMessenger } from '../../src/kernel/native/messenger.ts';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { NativeRemoteMessenger } from '../../src/kernel/native/remote-messenger.ts';
import type { Messenger } from '../../src/runtime/transfer/messenger.ts';
import { emulatedIbverbs } from '../native/check-programs.ts';
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
        // An event before this call is checked by the caller again.
        setImmediate(resolve);
      });
    return { pool, messenger, awaken };
  };
  return [end(), end()];
}

if (loadNative() === undefined) describe.skip('native messengers: the kernels are not compiled', () => {});
else {
  messengerContract('the native messenger', () => open(({ pool }, wake) => new NativeMessenger(pool, wake)));
  const tcp = { host: '127.0.0.1', token: 'a secret', transport: 'tcp' } as const;
  messengerContract('the native messenger over tcp', () =>
    open(({ pool }, wake) => new NativeRemoteMessenger(pool, tcp, wake)),
  );
  messengerContract('the native messenger over shared memory', () =>
    open(({ pool }, wake) => new NativeRemoteMessenger(pool, { ...tcp, transport: 'shared' }, wake)),
  );

  const ibverbs = await emulatedIbverbs();
  describe.skipIf(ibverbs === undefined)('over emulated RDMA (needs Linux and a C++ compiler)', () => {
    const before = process.env.KVASIR_IBVERBS;
    if (ibverbs !== undefined) process.env.KVASIR_IBVERBS = ibverbs;
    const opened: NativeRemoteMessenger[] = [];
    const over = (pool: Engine['pool'], transport: 'rdma' | 'tcp', wake: () => void) => {
      const messenger = new NativeRemoteMessenger(pool, { ...tcp, transport }, wake);
      opened.push(messenger);
      return messenger;
    };
    afterAll(() => {
      for (const messenger of opened) messenger.free();
      if (before === undefined) delete process.env.KVASIR_IBVERBS;
      else process.env.KVASIR_IBVERBS = before;
    });
    messengerContract('the native messenger over RDMA', () => open(({ pool }, wake) => over(pool, 'rdma', wake)));

    it.each([
      ['rdma', 'rdma', 'rdma'],
      ['rdma', 'tcp', 'tcp'],
      ['tcp', 'rdma', 'tcp'],
    ] as const)('from %s to %s sends over %s', async (from, to, used) => {
      const ways = [from, to];
      const [sender, receiver] = open(({ pool }, wake) => over(pool, ways.shift() ?? 'tcp', wake));
      const buffer = receiver.messenger.open(Int32Array.of(0));
      sender.messenger.send(buffer, 0, Int32Array.of(0, 0, 0), true);
      while (receiver.messenger.received().length === 0) await receiver.awaken();
      expect(sender.messenger.transportTo(buffer)).toBe(used);
    });
  });

  let target = '';
  const proxy = await TcpProxy.start(() => target);
  afterAll(() => proxy.stop());
  /** Its receive buffers are reached through the proxy. */
  const behindProxy = (remote: NativeRemoteMessenger): Messenger => {
    const shown = (buffer: string): string => buffer.replace(/:\d+/, `:${new URL(proxy.url).port}`);
    return {
      get counts() {
        return remote.counts;
      },
      get nextPoolStep() {
        return remote.nextPoolStep;
      },
      open: (pages, layers) => {
        const buffer = remote.open(pages, layers);
        target = `tcp://${buffer.split('/')[0]}`;
        return shown(buffer);
      },
      arrivals: (buffer, blocks) => remote.arrivals(buffer, blocks),
      close: (buffer) => remote.close(buffer),
      received: () => remote.received().map(shown),
      unreachable: () => remote.unreachable(),
      send: (buffer, step, descriptors, last) => remote.send(buffer, step, descriptors, last),
      stop: (buffer) => remote.stop(buffer),
      pending: (buffer) => remote.pending(buffer),
      transportTo: (buffer) => remote.transportTo(buffer),
    };
  };
  describe('a native messenger behind a proxy', () => {
    const ends = open(({ pool }, wake) => behindProxy(new NativeRemoteMessenger(pool, tcp, wake)));
    proxy.delay(2);
    messengerContract('the native messenger over a tcp line that is slow', () => ends);

    it('delivers all pages over a proxy that loses and corrupts data', async () => {
      const [sender, receiver] = ends;
      const [first, second] = sender.pool.blocks;
      const pages = [...first, ...second];
      const descriptors = Int32Array.from(pages.flatMap((page, place) => [place % first.length, page, place]));
      sender.pool.step();
      proxy.lose(0.1);
      for (let round = 0; round < 2; round++) {
        const to = Int32Array.from(pages, (_, place) => receiver.pool.pages - 1 - place);
        for (const page of to) receiver.pool.write(page, receiver.pool.read(page).fill(7));
        const buffer = receiver.messenger.open(to);
        sender.messenger.send(buffer, 0, descriptors, true);
        if (round === 1) {
          proxy.cut(true);
          await new Promise((resolve) => setImmediate(resolve));
          proxy.cut(false);
        }
        while (receiver.messenger.received().length === 0) await receiver.awaken();
        for (const [place, page] of pages.entries())
          expect(receiver.pool.read(to[place] ?? -1)).toEqual(sender.pool.read(page));
        receiver.messenger.close(buffer);
      }
      expect(sender.messenger.counts.faults).toBeGreaterThan(0);
    });
  });

  it('reports given-up receive buffers, and sends nothing more to them until they are stopped', async () => {
    const [sender, receiver] = open(
      ({ pool }, wake) => new NativeRemoteMessenger(pool, { ...tcp, giveUpMs: 100 }, wake),
    );
    const buffer = receiver.messenger.open(Int32Array.of(0, 1));
    const gone = buffer.replace(/:\d+/, `:${await closedPort()}`);
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
    sender.messenger.send(buffer, 0, page, true);
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
