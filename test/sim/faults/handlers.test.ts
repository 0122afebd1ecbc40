// The documented tables of message anomalies against the handlers that chaos runs count: a soak must run every handler of the tables.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';
import { peerMessageKinds } from '../../../src/core/protocol/peer-messages.ts';
import { lendingChaos } from '../../../src/sim/faults/lending-chaos.ts';
import { requestHandlers } from '../../../src/sim/faults/request-chaos.ts';

/** Names in the counts. */
const countedAs: Readonly<Record<string, string>> = { finished: 'ended', failed: 'ended' };

/** No chaos world has requests that outgrow an instance; the other cases occur less than once in a hundred seeds. */
const rare = [
  ...['lost', 'duplicate', 'orphan'].flatMap((anomaly) =>
    ['outgrows', 'migrate', 'migrated'].map((each) => `${anomaly} ${each}`),
  ),
  ...['lost leavePipeline', 'duplicate leavePipeline', 'orphan leavePipeline', 'orphan joinPipeline'],
  ...['duplicate activations', 'orphan activations', 'duplicate fetch', 'duplicate withdraw', 'orphan withdraw'],
];

interface Cell {
  readonly messages: readonly string[];
  readonly anomalies: readonly string[];
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
      return columnTexts.map((text, i) => ({ messages, anomalies: columns[i].split(', '), text }));
    });
}

/** Counted itself, or declared equal to a counted cell: the same anomaly of another message, or another anomaly of the same message. */
function isCounted({ messages, anomalies, text }: Cell, counted: readonly string[]): boolean {
  const [, other] = /^as (\w+)/.exec(text) ?? [];
  const isAnomaly = other === 'late' || other === 'orphan';
  const all = anomalies.flatMap((anomaly) => {
    if (other === undefined) return messages.map((message) => `${anomaly} ${countedAs[message] ?? message}`);
    return isAnomaly ? messages.map((message) => `${other} ${message}`) : [`${anomaly} ${countedAs[other] ?? other}`];
  });
  return all.some((key) => counted.includes(key));
}

function uncounted(page: string, counted: readonly string[]): readonly string[] {
  return cellsOf(page)
    .filter((cell) => !/^(nothing|never)/.test(cell.text) && !isCounted(cell, counted))
    .map(({ messages, anomalies }) => `${anomalies[0]} ${messages[0]}`);
}

it('counts every handler of the table of lending', () => {
  expect(cellsOf('internals/lending.md').length).toBe(4 * 19);
  expect(uncounted('internals/lending.md', lendingChaos.handlers)).toEqual([]);
});

it('has every message between instances in the table of requests', () => {
  const documented = new Set(cellsOf('internals/failures.md').flatMap(({ messages }) => messages));
  expect(peerMessageKinds.filter((kind) => !documented.has(kind))).toEqual([]);
});

it('counts every handler of the table of requests', () => {
  expect(cellsOf('internals/failures.md').length).toBeGreaterThan(3 * 15);
  expect([...uncounted('internals/failures.md', requestHandlers)].sort()).toEqual([...rare].sort());
});
