// Models that can lend memory: those whose layers all keep every token.
import { expect, it } from 'vitest';
import { lentGroup } from '../../../src/cli/serve/live-borrowing.ts';

it('is the only layer group of a model without windows', () => {
  const group = { layers: 30, window: undefined };
  expect(lentGroup([group])).toBe(group);
});

it.each([
  [
    'Mistral, whose layers all have a window',
    [{ layers: 32, window: 4096 }],
    /32 layers of the model keep 4096 tokens/,
  ],
  [
    'Gemma, where most layers have one',
    [
      { layers: 4, window: undefined },
      { layers: 22, window: 512 },
    ],
    /22 layers of the model keep 512 tokens/,
  ],
  [
    'several groups without windows',
    [
      { layers: 4, window: undefined },
      { layers: 2, window: undefined, sparse: true },
    ],
    /has 2 layer groups/,
  ],
])('refuses %s, with the figures', (_, groups, why) => {
  expect(() => lentGroup(groups)).toThrow(why);
});
