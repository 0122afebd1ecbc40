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

/** One checkpoint of every architecture beyond Llama and Qwen; a window that is no multiple of a page where layers slide. */
export const familySpecs: readonly RandomModelSpec[] = (
  ['mistral', 'gemma2', 'gemma3_text', 'phi3', 'gpt2', 'opt', 'bloom', 'gpt_neox'] as const
).map((architecture) => {
  const own = ['gpt2', 'opt', 'bloom', 'gpt_neox'].includes(architecture);
  return {
    ...oddSpec,
    architecture,
    layers: 3,
    maxPositions: 512,
    tieEmbeddings: architecture !== 'phi3' && architecture !== 'gpt_neox',
    // Heads of the older families divide the hidden size among them.
    ...(own ? { kvHeads: oddSpec.heads, headDim: 16 } : {}),
    ...(architecture === 'bloom' ? { intermediateSize: 4 * oddSpec.hiddenSize } : {}),
    ...(architecture === 'mistral' || architecture.startsWith('gemma') ? { window: 40 } : {}),
  };
});

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
