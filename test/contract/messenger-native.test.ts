// The native messenger keeps the contract, between two pools of one process.
import { fileURLToPath } from 'node:url';
import { describe } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { loadModel } from '../../src/engine/load-model.ts';
import { createNativeBackend, loadNative } from '../../src/kernel/native.ts';
import { NativeMessenger } from '../../src/kernel/native-messenger.ts';
import { type MessengerEnd, messengerContract } from './messenger.ts';

const path = fileURLToPath(new URL('../../models/kvasir-tiny/kvasir-tiny-q8_0.gguf', import.meta.url));

function open(): readonly [MessengerEnd, MessengerEnd] {
  const backend = createNativeBackend({ threads: 1 });
  const model = loadModel({ model: path, backend, context: 64 });
  const end = (): MessengerEnd => {
    const engine = new Engine({ model, backend, tokensMax: 64, logitRowsMax: 1, kvBytes: 2 ** 22 });
    let ring: (() => void) | undefined;
    const messenger = new NativeMessenger(engine.pool, () => ring?.());
    const awaken = (): Promise<void> =>
      new Promise((resolve) => {
        ring = resolve;
        // What came before this asks again.
        setImmediate(resolve);
      });
    return { engine, messenger, awaken };
  };
  return [end(), end()];
}

if (loadNative() === undefined) describe.skip('the native messenger: the kernels are not compiled', () => {});
else messengerContract('the native messenger', open);
