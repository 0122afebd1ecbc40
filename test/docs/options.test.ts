// The page of options equals the options of the commands.
import { expect, it } from 'vitest';
import { optionPage } from './option-page.ts';

it('lists every option of every command on the page of options', async () => {
  await expect(await optionPage()).toMatchFileSnapshot('../../docs/reference/options.md');
});
