// Flags that are negated: commander gives their default as if a user had stated it.
import { expect, it } from 'vitest';
import { joinCommand } from '../../../src/cli/commands/join.ts';
import { withoutDefaults } from '../../../src/cli/options/borrow-options.ts';

it('a join without options has given none of the negated flags', () => {
  const command = joinCommand().action(() => {});
  const given = (...words: readonly string[]) => withoutDefaults(command.parse([...words], { from: 'user' }).opts());
  expect(given()).toEqual({});
  expect(given('--no-warm-up')).toEqual({ warmUp: false });
});
