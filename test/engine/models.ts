// Small random models in a folder that the tests remove.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type RandomModelSpec, tinySpec, writeGgufModel, writeHuggingFaceModel } from '../weights/random-model.ts';

/** Odd sizes: apart from the quantisation block, no dimension is a multiple of 16 or 64. */
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

/** One checkpoint of every architecture beyond Llama and Qwen. Windows are not a multiple of a page. */
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
    // In the older families the head dimension is hidden size / heads.
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
