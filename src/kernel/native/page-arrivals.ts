// Pages on their way that a step can compute behind: made here, told of by messengers and stores, waited for by steps.
import { loadNative } from './addon.ts';

/** A handle is an integer, valid in every thread of the process until freed. */
export class NativeArrivals {
  readonly handle: number;

  /** Of (blocks, layers) pages. @throws where the kernels are not compiled */
  constructor(layers: number, blocks: number) {
    this.handle = native().createArrivals(layers, blocks);
  }

  /** Only the first `blocks` blocks come. */
  expect(blocks: number): void {
    native().expectBlocks(this.handle, blocks);
  }

  /** Steps that name it from now on go without. */
  free(): void {
    native().freeArrivals(this.handle);
  }
}

function native() {
  const loaded = loadNative();
  if (loaded === undefined) throw new Error('Cannot wait for pages: the native kernels are not compiled');
  return loaded;
}
