// One Chromium for the tests of pages in a test file.
import { existsSync } from 'node:fs';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';

const path = '/usr/bin/chromium';

/** In CI a missing browser is a failure, not a reason to skip. */
export const isBrowserMissing = !existsSync(path) && process.env.CI === undefined;

/** Starts with the first page. */
export class TestBrowser {
  #browser: Promise<Browser> | undefined;

  /** Opens a page, and closes it after `use`. */
  async page(options: BrowserContextOptions, use: (page: Page) => Promise<void>): Promise<void> {
    this.#browser ??= chromium.launch({ executablePath: path, args: ['--no-sandbox'] });
    const context = await (await this.#browser).newContext(options);
    await use(await context.newPage());
    await context.close();
  }

  async close(): Promise<void> {
    await (await this.#browser)?.close();
  }
}

/** The members of the canvas in use: tests compile without types of browsers. */
export interface Canvas {
  readonly width: number;
  readonly height: number;
  toDataURL(): string;
  getContext(kind: '2d'): {
    getImageData(
      x: number,
      y: number,
      width: number,
      height: number,
    ): { readonly data: { readonly buffer: ArrayBuffer } };
  };
}
