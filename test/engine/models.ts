// Small random models written to a folder that the tests clean up.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type RandomModelSpec, tinySpec, writeGgufModel, writeHuggingFaceModel } from '../weights/random-model.ts';

/** Odd sizes on purpose: no dimension but the quantisation block divides a tile of 16 or 64. */
export const oddSpec: RandomModelSpec = {
  ...tinySpec,
  vocabSize: 117,
  hiddenSize: 96,
  intermediateSize: 160,
  heads: 6,
  kvHeads: 2,
  headDim: 32,
  maxPositions: 2048,
};

export class ModelFolder {
  readonly path = mkdtempSync(join(tmpdir(), 'kvasir-engine-'));

  huggingFace(spec: RandomModelSpec, type: 'f32' | 'f16' | 'bf16'): string {
    const path = join(this.path, `${spec.architecture}-${type}`);
    writeHuggingFaceModel(path, spec, type);
    return path;
  }

  gguf(spec: RandomModelSpec, type: Parameters<typeof writeGgufModel>[2]): string {
    const path = join(this.path, `${spec.architecture}-${type}.gguf`);
    writeGgufModel(path, spec, type);
    return path;
  }

  remove(): void {
    rmSync(this.path, { recursive: true });
  }
}
