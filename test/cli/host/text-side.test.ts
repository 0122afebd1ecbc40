// What a gateway prepares for the texts of a model.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, vi } from 'vitest';
import { embeddedModel } from '../../../src/cli/package-root.ts';
import { createServedModel } from '../../../src/cli/serve/model/served-model.ts';
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

it('a gateway that only generates offers no embeddings and no rankings', () => {
  const served = (name: string, tasks: 'all' | 'generation') => {
    const files = openModel(join(import.meta.dirname, '../../data/encoders', name));
    const { generates = true, ranks = false, rankingRow, embedding } = createServedModel(files, 64, undefined, tasks);
    files.close();
    return [generates, ranks, rankingRow !== undefined, embedding !== undefined];
  };
  expect(served('qwen3', 'all')).toEqual([true, true, true, true]);
  expect(served('qwen3', 'generation')).toEqual([true, false, false, false]);
  expect(served('bert', 'generation')).toEqual([false, false, false, false]);
});

it('a model is a reranker by the name of its folder or hub repository, not of a folder above', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-qwen3-reranker-'));
  const source = join(import.meta.dirname, '../../data/encoders/qwen3');
  const ranks = (path: string): boolean => {
    mkdirSync(join(folder, path), { recursive: true });
    for (const file of readdirSync(source)) symlinkSync(join(source, file), join(folder, path, file));
    rmSync(join(folder, path, 'config.json'));
    const { classifier_from_token: _, ...config } = JSON.parse(readFileSync(join(source, 'config.json'), 'utf8'));
    writeFileSync(join(folder, path, 'config.json'), JSON.stringify(config));
    const files = openModel(join(folder, path));
    const { ranks: isReranker = false } = createServedModel(files, 64, undefined);
    files.close();
    return isReranker;
  };
  const paths = ['Qwen3-Reranker-0.6B', 'models--Qwen--Qwen3-Reranker-4B/snapshots/abc', 'other'];
  expect(paths.map(ranks)).toEqual([true, true, false]);
  rmSync(folder, { recursive: true });
});
