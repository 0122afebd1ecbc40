// Guest rooms reached over tcp and over shared memory: the contract of rooms in one process, doors that close, and keys that do not fit.
import { afterAll, describe, expect, test } from 'vitest';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';
import { NativeGuestDoor, reachGuestRoom } from '../../src/kernel/native/remote-attention-listener.ts';
import { attentionScene } from '../contract/backend-attention.ts';
import { lendOut, testRemoteKeys } from '../contract/backend-remote.ts';
import { play, type Reach, resultOf } from '../contract/scene.ts';

const host = '127.0.0.1';

function over(transport: 'tcp' | 'shared', doorToken = 'secret', token = doorToken): Reach {
  return (backend, pool, room) => {
    const door = new NativeGuestDoor(room, { host, token: doorToken, transport });
    const far = reachGuestRoom(pool, door.address, token, transport);
    return {
      room: far,
      close: () => {
        backend.freeRemoteAttentionServer(far);
        door.close();
      },
    };
  };
}

describe.skipIf(loadNative() === undefined).each([['tcp'], ['shared']] as const)('guest rooms over %s', (transport) => {
  const backend = createNativeBackend({ threads: 2 });
  afterAll(() => backend.close());

  testRemoteKeys(backend, 6, over(transport));

  const whole = attentionScene({ heads: 4, kvHeads: 2, headDim: 16 }, 'bf16', [{ start: 1100, rows: 2 }], 3, false);
  const lent = lendOut(whole, 1, () => 0);

  test('a debtor that does not know the token is refused', () => {
    const played = play(backend, lent, {}, undefined, over(transport, 'secret', 'another'));
    expect(resultOf(played).unanswered).toEqual(Int32Array.of(0));
  });

  test('a server without a listener refuses', () => {
    const gone: Reach = (_, pool, room) => {
      const door = new NativeGuestDoor(room, { host, token: 'secret', transport });
      door.close();
      const far = reachGuestRoom(pool, door.address, 'secret', transport);
      return { room: far, close: () => backend.freeRemoteAttentionServer(far) };
    };
    expect(resultOf(play(backend, lent, {}, undefined, gone)).unanswered).toEqual(Int32Array.of(0));
  });

  test('pages behind a door are lent by their own process alone', () => {
    const pool = backend.createKvPool({ pages: 1, kvHeads: 1, headDim: 2, type: 'f32' });
    const far = reachGuestRoom(pool, `${host}:1`, 'secret', transport);
    expect(() => backend.lendBlocks(far, 1, Int32Array.of(0), Int32Array.of(0))).toThrow(
      /it belongs to another process/,
    );
    backend.freeRemoteAttentionServer(far);
    backend.freeKvPool(pool);
  });
});
