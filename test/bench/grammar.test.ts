// The bench of grammars on the embedded model: its report, not its speed.
import { expect, test } from 'vitest';
import { benchGrammar } from '../../src/bench/grammar.ts';
import { createNativeBackend, loadNative } from '../../src/kernel/native/native.ts';

const entry = new URL('../../bundle/cli/serve/model/grammar-worker.js', import.meta.url);

test.skipIf(loadNative() === undefined)('a row for each batch, over outputs that end and begin anew', async () => {
  const backend = createNativeBackend({ threads: 1 });
  try {
    const { rows } = await benchGrammar(backend, {
      ...{ model: 'models/kvasir-tiny/kvasir-tiny-q8_0.gguf', weights: 'native', inputs: 'bf16', entry },
      ...{ batch: [3], depth: 5, generate: 12, schema: '{"enum":[1,22]}' },
    });
    expect(rows.map(({ batch }) => batch)).toEqual([3]);
    for (const { freeMs, maskedMs, maskMs } of rows) {
      expect(Math.min(freeMs, maskedMs, maskMs)).toBeGreaterThan(0);
      expect(maskedMs).toBeGreaterThan(maskMs);
    }
  } finally {
    backend.close();
  }
});
