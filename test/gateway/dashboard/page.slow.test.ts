// The dashboard in Chromium over a gateway with synthetic figures: views, widths, themes, keys and 1,000 instances.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { afterAll, describe, expect, it } from 'vitest';
import { type Gateway, listen } from '../../../src/gateway/http/server.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { type Canvas, isBrowserMissing, TestBrowser } from '../../browser.ts';
import { gatewayOptions } from '../world.ts';
import { SyntheticPort, syntheticCluster } from './synthetic-cluster.ts';

const webFolder = fileURLToPath(new URL('../../../web', import.meta.url));
const browser = new TestBrowser();
const gateways: Gateway[] = [];
afterAll(async () => {
  await browser.close();
  await Promise.all(gateways.map((gateway) => gateway.drain({ waitMs: 0, timeoutMs: 0 })));
});

async function serve(instances: number, keys = new ApiKeys({ users: [], admins: [] })): Promise<string> {
  const synthetic = syntheticCluster(instances, 60);
  const { cluster } = synthetic;
  const port = new SyntheticPort(synthetic, 'An answer.');
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
        if (['Memory', 'Requests'].includes(name)) expect((await page.screenshot()).length).toBeGreaterThan(10_000);
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
      await tab(page, 'Flows');
      expect(await page.locator('#links path').count()).toBe(12);
      expect(await page.locator('#debts').textContent()).toContain('40 blocks borrowed');
      await tab(page, 'Prefixes');
      expect(await page.locator('#prefixes .line').allInnerTexts()).toHaveLength(5);
      await tab(page, 'Memory');
      expect(await page.locator('#memory').evaluate(coloursOf)).toBeGreaterThan(12);
    });
  });

  it('asks for the key of an admin, and shows the path of a chat, recordings and traces with it', async () => {
    const url = await serve(3, new ApiKeys({ users: ['mine'], admins: ['ours'] }));
    await browser.page({ acceptDownloads: true }, async (page) => {
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
      await tab(page, 'Chat');
      await page.locator('#chat-text').fill('hi');
      await page.getByRole('button', { name: 'Send' }).click();
      await page.locator('.said.assistant', { hasText: 'An answer.' }).waitFor();
      await page.locator('#chat-path', { hasText: 'Placement' }).waitFor();
      const saved = async (name: string) => {
        const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name }).click()]);
        return file.path();
      };
      const { traceEvents } = JSON.parse(readFileSync(await saved('Save Perfetto trace'), 'utf8')) as Trace;
      expect(new Set(traceEvents.map(({ ph }) => ph))).toEqual(new Set(['M', 'X', 'C']));
      for (const { dur = 1 } of traceEvents) expect(dur).toBeGreaterThan(0);
      await page.locator('#file').setInputFiles(await saved('Save recording'));
      await page.locator('#player').waitFor();
      await page.locator('#slider').fill('0');
      await tab(page, 'Requests');
      expect(await page.locator('#request').textContent()).toContain('lowest predicted TTFT');
    });
  });

  it('draws 1,000 instances', async () => {
    await opened(await serve(1000), { width: 1280, colorScheme: 'dark' }, async (page) => {
      await drawn(page);
      const drawMs: number[] = [];
      for (const name of ['Requests', 'Flows', 'Memory']) {
        await tab(page, name);
        drawMs.push(Number(await page.evaluate('document.documentElement.dataset.drawn')));
      }
      if (process.env.KVASIR_PRINT !== undefined) console.log('ms of each view:', drawMs.join(' '));
      expect(await page.locator('#memory').evaluate(coloursOf)).toBeGreaterThan(12);
      await page.locator('#memory').click({ position: { x: 400, y: 40 } });
      expect(await page.locator('#instance h2').textContent()).toMatch(/^(prefill|decode) \d+$/);
    });
  });
});

interface Trace {
  readonly traceEvents: readonly { readonly ph: string; readonly dur?: number }[];
}

/** The number of different colours on a canvas. */
function coloursOf(element: unknown): number {
  const canvas = element as Canvas;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}
