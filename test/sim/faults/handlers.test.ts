// The documented tables of message messageCounts against the handlers that chaos runs count: a soak must run every handler of the tables.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';
import { lendingChaos } from '../../../src/sim/faults/lending-chaos.ts';
import { requestHandlers } from '../../../src/sim/faults/request-chaos.ts';

/** Names in the counts. */
const countedAs: Readonly<Record<string, string>> = { finished: 'ended', failed: 'ended' };

/** No chaos world has requests that outgrow an instance; the other cases occur less than once in a hundred seeds. */
const rare = [
  ...['lost', 'doubled', 'orphan'].flatMap((fate) =>
    ['outgrows', 'migrate', 'migrated'].map((each) => `${fate} ${each}`),
  ),
  ...['lost leavePipeline', 'doubled leavePipeline', 'orphan leavePipeline', 'orphan joinPipeline'],
  ...['doubled activations', 'orphan activations', 'doubled fetch'],
];

interface Cell {
  readonly messages: readonly string[];
  readonly messageCounts: readonly string[];
  readonly text: string;
}

function cellsOf(page: string): readonly Cell[] {
  const lines = readFileSync(join(root, 'docs', page), 'utf8').split('\n');
  const from = lines.findIndex((line) => line.startsWith('| message |'));
  const cells = (line: string) =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim());
  const [, ...columns] = cells(lines[from]);
  const rows = lines.slice(from + 2);
  return rows
    .slice(
      0,
      rows.findIndex((line) => !line.startsWith('|')),
    )
    .flatMap((row) => {
      const [name, ...columnTexts] = cells(row);
      const messages = name.replace(/ \(.*\)/, '').split(', ');
      return columnTexts.map((text, i) => ({ messages, messageCounts: columns[i].split(', '), text }));
    });
}

/** Counted itself, or declared equal to a counted cell: the same fate of another message, or another fate of the same message. */
function isCounted({ messages, messageCounts, text }: Cell, counted: readonly string[]): boolean {
  const [, other] = /^as (\w+)/.exec(text) ?? [];
  const isFate = other === 'late' || other === 'orphan';
  const all = messageCounts.flatMap((fate) => {
    if (other === undefined) return messages.map((message) => `${fate} ${countedAs[message] ?? message}`);
    return isFate ? messages.map((message) => `${other} ${message}`) : [`${fate} ${countedAs[other] ?? other}`];
  });
  return all.some((key) => counted.includes(key));
}

function uncounted(page: string, counted: readonly string[]): readonly string[] {
  return cellsOf(page)
    .filter((cell) => !/^(nothing|never)/.test(cell.text) && !isCounted(cell, counted))
    .map(({ messages, messageCounts }) => `${messageCounts[0]} ${messages[0]}`);
}

it('counts every handler of the table of lending', () => {
  expect(cellsOf('internals/lending.md').length).toBe(4 * 19);
  expect(uncounted('internals/lending.md', lendingChaos.handlers)).toEqual([]);
});

it('counts every handler of the table of requests', () => {
  expect(cellsOf('internals/failures.md').length).toBeGreaterThan(3 * 15);
  expect([...uncounted('internals/failures.md', requestHandlers)].sort()).toEqual([...rare].sort());
});
