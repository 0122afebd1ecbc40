// The native kernels for kernel benches: a thread team, and the limits of the machine.
import type { InputForm } from '../../graph/program.ts';
import { inputFormCodes, kvTypeCodes, type NativeIsa, nativeIsas } from '../../kernel/codes.ts';
import { findNative, type NativeModule, type NativeSplit } from '../../kernel/native/addon.ts';
import { chooseIsa } from '../../kernel/native/native.ts';
import type { KvType } from '../../util/kv-type.ts';

export interface HeadsShape {
  readonly kvHeads: number;
  /** Query heads of a KV head. */
  readonly group: number;
  readonly headDim: number;
}

const roofRepeats = 5;

/** @throws Error if the kernels are not compiled: the speed of the reference backend is meaningless */
export class KernelLab {
  readonly isa: NativeIsa;
  readonly threads: number;
  readonly #native: NativeModule;
  readonly #team: number;

  constructor(threads: number) {
    const found = findNative();
    if (found.kind === 'absent') throw new Error(`Cannot bench kernels: ${found.why}`);
    this.#native = found.native;
    this.isa = chooseIsa(found.native);
    this.threads = threads;
    this.#team = found.native.createBackend(nativeIsas.indexOf(this.isa), threads);
  }

  /** GB/s of reading `mebibytes` of contiguous memory on huge pages: the roof of memory from 1024 on, that of caches below. */
  readRoof(mebibytes: number): number {
    return this.#native.readRoof(this.#team, mebibytes, roofRepeats) / 1e9;
  }

  /** GFLOP/s of the multiply instruction of attention, with operands in registers. */
  attentionPeak(type: KvType): number {
    return this.#native.attentionPeak(this.#team, kvTypeCodes[type]) / 1e9;
  }

  /** GFLOP/s (for int8 and i16: giga operations) of the multiply instruction of linear layers, with operands in registers. */
  productPeak(inputs: InputForm): number {
    return this.#native.productPeak(this.#team, inputFormCodes[inputs]) / 1e9;
  }

  /** One row of each of as many sequences of `context` tokens as fill `mebibytes`, pages shuffled over all of it. */
  decode(
    type: KvType,
    { kvHeads, group, headDim }: HeadsShape,
    context: number,
    mebibytes: number,
    repeats: number,
  ): { readonly seconds: number; readonly bytes: number; readonly sequences: number } & NativeSplit {
    return this.#native.benchDecode(
      this.#team,
      kvTypeCodes[type],
      kvHeads,
      group,
      headDim,
      context,
      mebibytes,
      repeats,
    );
  }

  /** The last `queries` tokens of one sequence of `context` tokens. */
  prefill(
    type: KvType,
    { kvHeads, group, headDim }: HeadsShape,
    queries: number,
    context: number,
    repeats: number,
  ): { readonly seconds: number; readonly operations: number } & NativeSplit {
    return this.#native.benchPrefill(this.#team, kvTypeCodes[type], kvHeads, group, headDim, queries, context, repeats);
  }

  /** Attention of the last `observed` tokens of one sequence, and the pass that scores its keys with them. */
  scoring(
    type: KvType,
    { kvHeads, group, headDim }: HeadsShape,
    observed: number,
    context: number,
    repeats: number,
  ): { readonly seconds: number; readonly attentionSeconds: number } {
    const code = kvTypeCodes[type];
    return this.#native.benchScoring(this.#team, code, kvHeads, group, headDim, observed, context, repeats);
  }

  close(): void {
    this.#native.freeBackend(this.#team);
  }
}
