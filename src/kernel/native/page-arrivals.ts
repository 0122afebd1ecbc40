// Arrival counters of pages in transfer: messengers and stores report pages, and steps wait for their layers.
import { loadNative } from './addon.ts';

/** A handle is an integer, valid in every thread of the process until freed. */
export class NativeArrivals {
  readonly handle: number;

  /** Counters of (blocks, layers) pages. @throws if the kernels are not compiled */
  constructor(layers: number, blocks: number) {
    this.handle = native().createArrivals(layers, blocks);
  }

  /** Only the first `blocks` blocks arrive. */
  expect(blocks: number): void {
    native().expectBlocks(this.handle, blocks);
  }

  /** For a later step that refers to it, the pages count as lost. */
  free(): void {
    native().freeArrivals(this.handle);
  }
}

function native() {
  const loaded = loadNative();
  if (loaded === undefined) throw new Error('Cannot wait for pages: the native kernels are not compiled');
  return loaded;
}
