// Remote attention servers over TCP and shared memory: the contract of servers in one process, closed listeners, and
// unknown tokens.
import { afterAll, describe, expect, test } from 'vitest';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import {
  createRemoteAttentionClient,
  RemoteAttentionListener,
} from '../../src/kernel/native/remote-attention-listener.ts';
import { attentionScene } from '../contract/backend-attention.ts';
import { lendOut, testRemoteKeys } from '../contract/backend-remote.ts';
import { type Connect, play, resultOf } from '../contract/scene.ts';

const host = '127.0.0.1';

function over(transport: 'tcp' | 'shared', listenerToken = 'secret', token = listenerToken): Connect {
  return (backend, pool, server) => {
    const listener = new RemoteAttentionListener(server, { host, token: listenerToken, transport });
    const client = createRemoteAttentionClient(pool, listener.address, token, transport);
    return {
      server: client,
      close: () => {
        backend.freeRemoteAttentionServer(client);
        listener.close();
      },
    };
  };
}

/** The debtor fetches the pages, and sends no row. */
function reading(connect: Connect): Connect {
  return (backend, pool, server) => {
    const connection = connect(backend, pool, server);
    const reader = backend.createRemotePageReader(connection.server);
    return {
      server: reader,
      close: () => {
        backend.freeRemoteAttentionServer(reader);
        connection.close();
        expect(backend.remoteAttentionCounts(server).rows).toBe(0);
      },
    };
  };
}

describe.skipIf(loadNative() === undefined).each([['tcp'], ['shared']] as const)(
  'remote attention servers over %s',
  (transport) => {
    const backend = createNativeBackend({ threads: 2 });
    afterAll(() => backend.close());

    testRemoteKeys(backend, 6, over(transport));

    const whole = attentionScene({ heads: 4, kvHeads: 2, headDim: 16 }, 'bf16', [{ start: 1100, rows: 2 }], 3, false);
    const lent = lendOut(whole, 1, () => 0);

    test('refuse a client with another token', () => {
      const played = play(backend, lent, {}, undefined, over(transport, 'secret', 'another'));
      expect(resultOf(played).failedSequences).toEqual(Int32Array.of(0));
    });

    test('do not answer after their listener is closed', () => {
      const closed: Connect = (_, pool, server) => {
        const listener = new RemoteAttentionListener(server, { host, token: 'secret', transport });
        listener.close();
        const client = createRemoteAttentionClient(pool, listener.address, 'secret', transport);
        return { server: client, close: () => backend.freeRemoteAttentionServer(client) };
      };
      expect(resultOf(play(backend, lent, {}, undefined, closed)).failedSequences).toEqual(Int32Array.of(0));
    });

    test('do not lend pages through a client', () => {
      const pool = backend.createKvPool({ pages: 1, kvHeads: 1, headDim: 2, type: 'f32' });
      const client = createRemoteAttentionClient(pool, `${host}:1`, 'secret', transport);
      expect(() => backend.lendBlocks(client, 1, Int32Array.of(0), Int32Array.of(0))).toThrow(
        /it belongs to another process/,
      );
      backend.freeRemoteAttentionServer(client);
      backend.freeKvPool(pool);
    });
  },
);

describe.skipIf(loadNative() === undefined)('pages that a debtor fetches from a server over tcp', () => {
  const backend = createNativeBackend({ threads: 2 });
  afterAll(() => backend.close());

  testRemoteKeys(backend, 4, reading(over('tcp')));
});
