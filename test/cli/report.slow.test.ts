// The page of a simulated run, opened from disk in a real browser; and its timeline.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { DashboardFrame } from '../../src/gateway/dashboard/frame.ts';
import type { RequestRow } from '../../src/gateway/dashboard/request-rows.ts';
import type { Canvas } from '../browser.ts';

const command = fileURLToPath(new URL('../../bundle/cli/main.js', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'kvasir-report-'));
const page = join(folder, 'run.html');
const lendingPage = join(folder, 'lending.html');
const timeline = join(folder, 'run.json');
const recording = join(folder, 'recording.json');
const run = [
  'simulate',
  '--ttft-slo',
  '30s',
  '--tbt-slo',
  '200ms',
  '--workload',
  'real',
  '--requests',
  '800',
  '--rate',
  '4',
  '--mixed',
  '3',
  '--queue',
  '60',
];
afterAll(() => rmSync(folder, { recursive: true }));

function simulate(...flags: string[]): { stateHash: string; steps: number; refused: { atPrefill: number } } {
  const { stdout, stderr } = spawnSync(process.execPath, [command, ...run, '--json', ...flags], { encoding: 'utf8' });
  expect(stderr).not.toContain('Cannot');
  return JSON.parse(stdout);
}

describe('files of a run', () => {
  it('do not change the run', () => {
    const plain = simulate();
    const recorded = simulate(
      '--report',
      page,
      '--timeline',
      timeline,
      '--timeline-window',
      '30s..90s',
      '--recording',
      recording,
    );
    expect(recorded.stateHash).toBe(plain.stateHash);
    expect(plain.refused.atPrefill).toBeGreaterThan(0);
  });

  it('hold frames and requests for the dashboard', () => {
    const { object, frames, requests } = JSON.parse(readFileSync(recording, 'utf8')) as Recording;
    expect(object).toBe('kvasir.dashboard.recording');
    expect([frames.length > 100, frames.length <= 401, requests.length]).toEqual([true, true, 800]);
    expect(frames.map(({ now_ms }) => now_ms)).toEqual(frames.map(({ now_ms }) => now_ms).sort((a, b) => a - b));
    const last = frames.at(-1);
    expect(last?.instances.map(([name]) => name)).toEqual(['mixed 0', 'mixed 1', 'mixed 2']);
    expect(last?.classes[0]).toMatchObject({ name: '', ttft: { slo: 30_000 }, tbt: { slo: 200 } });
    expect(last?.prefixes.length).toBeGreaterThan(10);
    expect(last?.refusals[0]?.[2]).toBeGreaterThan(0);
    for (const { state, placements, parts } of requests) {
      if (state === 'finished') expect(placements.length).toBeGreaterThan(0);
      expect(parts.some(([kind]) => kind === 'decode')).toBe(state === 'finished');
    }
    // Long prompts have a part for each of their chunks, which follow one another.
    const chunks = requests.map(({ parts }) => parts.filter(([kind]) => kind === 'prefill'));
    expect(chunks.some((list) => list.length > 4)).toBe(true);
    for (const list of chunks)
      for (const [i, [, from]] of list.entries()) expect(from).toBeGreaterThanOrEqual(list[i - 1]?.[2] ?? 0);
  });

  it('hold the steps of the window, one after the other on each instance', () => {
    const { traceEvents } = JSON.parse(readFileSync(timeline, 'utf8')) as { traceEvents: TraceEvent[] };
    const names = traceEvents.filter(({ name }) => name === 'thread_name').map(({ args }) => args.name);
    expect(names).toEqual(['mixed 0', 'mixed 1', 'mixed 2']);
    const steps = traceEvents.filter(({ ph }) => ph === 'X');
    expect(steps.length).toBeGreaterThan(1000);
    expect(new Set(steps.map(({ name }) => name))).toContain('prefill and decode');
    const endUs = [0, 0, 0];
    for (const { tid, ts, dur } of steps) {
      expect(ts).toBeGreaterThanOrEqual(endUs[tid]);
      expect([ts + dur > 30e6, ts < 90e6]).toEqual([true, true]);
      endUs[tid] = ts + dur;
    }
  });
});

interface Recording {
  readonly object: string;
  readonly frames: readonly DashboardFrame[];
  readonly requests: readonly RequestRow[];
}

interface TraceEvent {
  readonly name: string;
  readonly ph: string;
  readonly tid: number;
  readonly ts: number;
  readonly dur: number;
  readonly args: { readonly name?: string };
}

/** True once the plots have the width of their cards. */
const isRedrawn = "document.querySelector('.plot').clientWidth === document.querySelector('.uplot').clientWidth";

/** The fewest labels of an axis of a plot. */
const fewestLabels =
  "Math.min(...[...document.querySelectorAll('.uplot')].map(({ dataset }) => Number(dataset.labels)))";

const browserPath = '/usr/bin/chromium';
const inCi = process.env.CI !== undefined;

describe.skipIf(!existsSync(browserPath) && !inCi)('the page in Chromium', () => {
  let browser: Browser;
  beforeAll(async () => {
    browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox'] });
  });
  afterAll(() => browser?.close());

  async function opened(colorScheme: 'light' | 'dark', use: (page: Page) => Promise<void>, path = page): Promise<void> {
    const context = await browser.newContext({ offline: true, colorScheme, viewport: { width: 1280, height: 900 } });
    const tab = await context.newPage();
    const events: string[] = [];
    tab.on('console', (message) => events.push(message.text()));
    tab.on('pageerror', (error) => events.push(String(error)));
    tab.on('request', (request) => events.push(request.url()));
    await tab.goto(pathToFileURL(path).href);
    await tab.waitForSelector('html[data-drawn]');
    await use(tab);
    // The page requests only itself, and writes nothing to the console.
    expect(events).toEqual([pathToFileURL(path).href]);
    await context.close();
  }

  it.each(['light', 'dark'] as const)('draws every plot and loads nothing: %s', async (scheme) => {
    await opened(scheme, async (tab) => {
      expect(await tab.locator('.uplot canvas').count()).toBe(12);
      for (const canvas of await tab.locator('canvas').all()) expect(await coloursOf(canvas)).toBeGreaterThan(8);
      expect(await tab.locator('#blocks .bar i').count()).toBeGreaterThan(2);
      expect(await tab.locator('.tile').allInnerTexts()).toContainEqual(expect.stringContaining('refused'));
    });
  });

  it('has three labels or more on every axis, and no overflow, in a narrow and in a wide window', async () => {
    await opened('light', async (tab) => {
      for (const width of [420, 1280]) {
        await tab.setViewportSize({ width, height: 900 });
        // The page is drawn again after the change of its width: until then, labels and widths may be those before.
        const fits = `document.documentElement.scrollWidth === ${width}`;
        // Polled from here: the page's policy refuses to evaluate text in its own timers.
        const isSettled = () => tab.evaluate(`${isRedrawn} && ${fits} && ${fewestLabels} >= 3`);
        await expect.poll(isSettled, { timeout: 60_000 }).toBe(true);
      }
    });
  });

  it('describes the cell under the pointer, and switches figures on request', async () => {
    await opened('light', async (tab) => {
      const heat = tab.locator('#heat');
      await heat.scrollIntoViewIfNeeded();
      await heat.hover({ position: { x: 400, y: 30 } });
      expect(await tab.locator('#instances .caption').textContent()).toMatch(/^mixed 1 at .*: \d+ requests running$/);
      const before = await heat.evaluate((canvas) => (canvas as unknown as Canvas).toDataURL());
      await tab.getByRole('button', { name: 'KV in use' }).click();
      expect(await heat.evaluate((canvas) => (canvas as unknown as Canvas).toDataURL())).not.toBe(before);
      await tab
        .locator('.u-over')
        .first()
        .hover({ position: { x: 200, y: 60 } });
      expect(await tab.locator('.u-legend').first().textContent()).toMatch(/below\s*[\d.]+ %/);
    });
  });

  it('shows debts at the time of the slider, and transfers between instances', async () => {
    const lending = [
      ...['simulate', '--borrow', '--model', 'llama2-13b', '--hardware', 'a100-80', '--mixed', '3', '--requests', '25'],
      ...['--workload', 'plain', '--input', '1000..20000', '--output', '200..1000', '--rate', '3'],
      ...['--placement', 'random', '--low-water', '0.1', '--lend-share', '0.8', '--report', lendingPage],
    ];
    expect(spawnSync(process.execPath, [command, ...lending], { encoding: 'utf8' }).stderr).toBe('');
    const checkDebts = async (tab: Page) => {
      const debts = tab.locator('.card', { has: tab.getByRole('heading', { name: 'Debts' }) });
      expect(await debts.locator('path').count()).toBeGreaterThan(0);
      expect(await debts.locator('p').textContent()).toMatch(/^\d+ blocks lent at /);
      await debts.locator('input').fill('0');
      expect(await debts.locator('path').count()).toBe(0);
      const links = tab.locator('.card', { has: tab.getByRole('heading', { name: 'Links' }) });
      expect(await links.locator('path').count()).toBeGreaterThan(0);
    };
    await opened('light', checkDebts, lendingPage);
  });
});

/** The number of different colours on a canvas. */
async function coloursOf(canvas: ReturnType<Page['locator']>): Promise<number> {
  return canvas.evaluate((element) => {
    const canvas = element as unknown as Canvas;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  });
}
