// Generated pages of the reference equal what the code has. `-u` writes them anew.
import { expect, it } from 'vitest';
import { metricPage } from './metric-page.ts';
import { optionPage } from './option-page.ts';

it('lists every option of every command on the page of options', async () => {
  await expect(await optionPage()).toMatchFileSnapshot('../../docs/reference/options.md');
});

it('lists every metric on the page of metrics', async () => {
  await expect(metricPage()).toMatchFileSnapshot('../../docs/reference/metrics.md');
});
