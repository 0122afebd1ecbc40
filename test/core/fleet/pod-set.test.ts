// Pods by lists and watches: each event doubled, late and lost.
import { expect, it } from 'vitest';
import { PodSet, type WatchedPod } from '../../../src/core/fleet/pod-set.ts';

const pod = (uid: string, version: number, address?: string): WatchedPod => ({
  ...{ uid, version: String(version), address },
});
const stored = (...of: Parameters<typeof pod>) => ({ kind: 'stored', pod: pod(...of) }) as const;
const deleted = (...of: Parameters<typeof pod>) => ({ kind: 'deleted', pod: pod(...of) }) as const;

/** Effects of the changes, briefly. */
function run(set: PodSet<WatchedPod>, ...changes: readonly Parameters<PodSet<WatchedPod>['changed']>[0][]): string[] {
  return changes.map((change) => brief(set.changed(change)));
}
function brief(effects: ReturnType<PodSet<WatchedPod>['changed']>): string {
  return effects
    .map((effect) =>
      effect.kind === 'join' ? `join ${effect.pod.address}` : `${effect.isGone ? 'gone' : 'drain'} ${effect.pod.uid}`,
    )
    .join(', ');
}

it('reports pods that become ready, lose it, and are deleted', () => {
  const set = new PodSet<WatchedPod>();
  expect(set.version).toBeUndefined();
  expect(brief(set.listed([pod('a', 5, 'a:1'), pod('b', 6)], '10'))).toBe('join a:1');
  expect(run(set, stored('b', 11, 'b:1'), stored('a', 12), stored('a', 13, 'a:1'), deleted('a', 14))).toEqual([
    ...['join b:1', 'drain a', 'join a:1', 'gone a'],
  ]);
  expect(set.version).toBe('14');
  expect(run(set, stored('b', 15, 'b:2'))).toEqual(['drain b, join b:2']);
});

it('ignores doubled events, and late ones of the same pod', () => {
  const set = new PodSet<WatchedPod>();
  set.listed([], '1');
  const changes = [stored('a', 2, 'a:1'), stored('a', 4), deleted('a', 5)] as const;
  expect(run(set, ...changes.flatMap((change) => [change, change]))).toEqual([
    'join a:1',
    '',
    'drain a',
    '',
    'gone a',
    '',
  ]);
  expect(run(set, stored('a', 2, 'a:1'), stored('b', 6, 'b:1'), stored('b', 3))).toEqual(['', 'join b:1', '']);
  expect(set.version).toBe('6');
  // Another pod of the same name is another one.
  expect(run(set, stored('a2', 7, 'a:1'), deleted('a', 5))).toEqual(['join a:1', '']);
});

it('finds by a list what its watch has missed', () => {
  const set = new PodSet<WatchedPod>();
  set.listed([pod('a', 1, 'a:1'), pod('b', 2, 'b:1'), pod('c', 3, 'c:1')], '3');
  set.changed({ kind: 'bookmark', version: '9' });
  expect(set.version).toBe('9');
  set.expired();
  expect(set.version).toBeUndefined();
  expect(brief(set.listed([pod('b', 12), pod('c', 3, 'c:1'), pod('d', 13, 'd:1')], '13'))).toBe(
    'gone a, drain b, join d:1',
  );
});
