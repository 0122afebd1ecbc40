// Generated pages of the reference equal what the code has. `-u` writes them anew.
import { expect, it } from 'vitest';
import { apiPage } from './api-page.ts';
import { metricPage } from './metric-page.ts';
import { optionPage } from './option-page.ts';

it('lists every option of every command on the page of options', async () => {
  await expect(await optionPage()).toMatchFileSnapshot('../../docs/reference/options.md');
});

it('lists every metric on the page of metrics', async () => {
  await expect(metricPage()).toMatchFileSnapshot('../../docs/reference/metrics.md');
});

it('describes what the library exports on the pages of its interface', async () => {
  const opening = 'An engine in the process of its user; [the guide](../../guide/library.md) begins with examples.';
  const library = apiPage('src/library/index.ts', 'kvasir', opening);
  await expect(library).toMatchFileSnapshot('../../docs/reference/api/kvasir.md');
  const aiSdk = apiPage('src/library/ai-sdk.ts', 'kvasir/ai-sdk', 'An engine as a language model of the AI SDK.');
  await expect(aiSdk).toMatchFileSnapshot('../../docs/reference/api/ai-sdk.md');
});
