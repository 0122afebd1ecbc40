// What a gateway prepares for the texts of a model.
import { join } from 'node:path';
import { expect, it, vi } from 'vitest';
import { embeddedModel } from '../../../src/cli/package-root.ts';
import { openTextSide } from '../../../src/cli/serve/model/text-side.ts';
import { ThreadCompiler } from '../../../src/runtime/grammars/thread-compiler.ts';
import { openModel } from '../../../src/weights/open-model.ts';

it('a warm-up starts the grammar thread of a model that generates, and none for an encoder', async () => {
  const started = vi.spyOn(ThreadCompiler.prototype, 'warmUp').mockImplementation(() => {});
  const starts: number[] = [];
  for (const path of [embeddedModel, join(import.meta.dirname, '../../data/encoders/bert')]) {
    const files = openModel(path);
    const text = openTextSide(files, path, 64, undefined);
    text.warmUp();
    starts.push(started.mock.calls.length);
    files.close();
    await text.close();
  }
  started.mockRestore();
  expect(starts).toEqual([1, 1]);
});
