// The dashboard in Chromium over a gateway with synthetic figures: views, widths, themes, keys and 1,000 instances.
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { afterAll, describe, expect, it } from 'vitest';
import { type Gateway, listen } from '../../../src/gateway/http/server.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { isBrowserMissing, TestBrowser } from '../../browser.ts';
import { ScriptedPort } from '../scripted-port.ts';
import { answering, gatewayOptions } from '../world.ts';
import { shownAt, syntheticCluster } from './synthetic-cluster.ts';

const webFolder = fileURLToPath(new URL('../../../web', import.meta.url));
const browser = new TestBrowser();
const gateways: Gateway[] = [];
afterAll(async () => {
  await browser.close();
  await Promise.all(gateways.map((gateway) => gateway.drain({ waitMs: 0, timeoutMs: 0 })));
});

async function serve(instances: number, keys = new ApiKeys({ users: [], admins: [] })): Promise<string> {
  const { cluster, snapshots } = syntheticCluster(instances, 60);
  const port = shownAt(new ScriptedPort(answering('An answer.')), snapshots) as ScriptedPort;
  const sloClasses = new Map([['chat', { priority: 0, ttft: { us: 43_000 }, tbt: { us: 8_000 } }]]);
  const gateway = await listen(gatewayOptions(port, { cluster, keys, webFolder, sloClasses }), '127.0.0.1', 0);
  gateways.push(gateway);
  return `http://127.0.0.1:${gateway.port}/dashboard`;
}

/** Opens the page, and fails on errors, messages of the console, and requests to other servers. */
async function opened(
  url: string,
  { width, colorScheme }: { readonly width: number; readonly colorScheme: 'light' | 'dark' },
  use: (page: Page) => Promise<void>,
): Promise<void> {
  await browser.page({ colorScheme, viewport: { width, height: 900 } }, async (page) => {
    const wrong: string[] = [];
    page.on('console', (message) => wrong.push(message.text()));
    page.on('pageerror', (error) => wrong.push(String(error)));
    page.on('request', (request) => {
      if (!request.url().startsWith(new URL(url).origin) && !request.url().startsWith('data:'))
        wrong.push(request.url());
    });
    await page.goto(url);
    await use(page);
    expect(wrong).toEqual([]);
  });
}

const drawn = (page: Page) => page.waitForSelector('html[data-drawn]');
const tab = (page: Page, name: string) => page.getByRole('tab', { name, exact: true }).click();

describe.skipIf(isBrowserMissing)('the dashboard in Chromium', () => {
  it.each([
    { width: 1280, colorScheme: 'light' as const },
    { width: 420, colorScheme: 'dark' as const },
  ])('draws every view within its width: $width, $colorScheme', async (look) => {
    await opened(await serve(6), look, async (page) => {
      await drawn(page);
      for (const name of await page.getByRole('tab').allInnerTexts()) {
        await tab(page, name);
        expect(await page.evaluate('document.documentElement.scrollWidth - innerWidth')).toBeLessThanOrEqual(0);
        expect((await page.screenshot()).length).toBeGreaterThan(10_000);
      }
      await tab(page, 'Requests');
      await page.locator('#requests').click({ position: { x: 40, y: 70 } });
      const detail = page.locator('#request');
      expect(await detail.locator('h2').first().textContent()).toBe('chatcmpl-0003-0');
      expect(await detail.textContent()).toMatch(
        /lowest predicted TTFT of 2 instances.*30 from cache; 20 never seen before/,
      );
      await tab(page, 'Latency');
      expect(await page.locator('#classes').textContent()).toMatch(/chatTTFT.*43 ms\d+\.\d %/);
      expect(await page.locator('#refusals').textContent()).toContain('ttft, agent');
      await tab(page, 'Memory');
      expect(await page.locator('#memory').evaluate(coloursOf)).toBeGreaterThan(12);
    });
  });

  it('asks for the key of an admin, and keeps it for its session', async () => {
    const url = await serve(2, new ApiKeys({ users: ['mine'], admins: ['ours'] }));
    await browser.page({}, async (page) => {
      await page.goto(url);
      for (const [key, message] of [
        ['mine', 'is not an admin key'],
        ['ours', ''],
      ] as const) {
        await page.locator('#access').waitFor();
        await page.locator('#key').fill(key);
        await page.getByRole('button', { name: 'Use key' }).click();
        if (message !== '') await page.locator('#access-why', { hasText: message }).waitFor();
      }
      await drawn(page);
      expect(await page.locator('#access').isHidden()).toBe(true);
    });
  });
});

/** The number of different colours on a canvas. */
function coloursOf(element: unknown): number {
  const canvas = element as {
    readonly width: number;
    readonly height: number;
    getContext(kind: '2d'): {
      getImageData(
        x: number,
        y: number,
        width: number,
        height: number,
      ): { readonly data: { readonly buffer: ArrayBuffer } };
    };
  };
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}
