// Membership: announcements that are lost, duplicated and late, processes that fail, leave, restart and return.

import { describe, expect, test } from 'vitest';
import { type Announcement, Membership, type MembershipEvent } from '../../../src/core/membership/liveness.ts';

const second = 1_000_000;

function members(refuses?: (announcement: Announcement) => string | undefined) {
  const membership = new Membership({ timeoutUs: 3 * second, ...(refuses && { refuses }) });
  const step = (atS: number, event: MembershipEvent<Announcement>) =>
    membership.step(atS * second, event).map((effect) => {
      if (effect.kind === 'joined') return `joined ${effect.member.name}.${effect.member.incarnation}`;
      return effect.kind === 'lost'
        ? `${effect.name}.${effect.incarnation} ${effect.why}`
        : `refused ${effect.name}: ${effect.why}`;
    });
  return {
    membership,
    announce: (atS: number, name: string, incarnation: number, number: number) =>
      step(atS, { kind: 'announced', announcement: { name, incarnation, number } }),
    wake: (atS: number) => step(atS, { kind: 'wake' }),
    step,
  };
}

describe('membership', () => {
  test('admits a process that announces itself, and declares it failed after its timeout', () => {
    const { membership, announce, wake } = members();
    expect(membership.nextUs).toBe(Number.POSITIVE_INFINITY);
    expect(announce(0, 'a', 1, 1)).toEqual(['joined a.1']);
    expect(announce(1, 'b', 1, 1)).toEqual(['joined b.1']);
    expect(announce(2, 'a', 1, 2)).toEqual([]);
    expect(membership.nextUs).toBe(4 * second);
    expect(wake(4)).toEqual(['b.1 sent no heartbeat']);
    expect([membership.has('a', 1), membership.has('b', 1)]).toEqual([true, false]);
  });

  test('tolerates some lost announcements, and all duplicate and late ones', () => {
    const { announce, wake } = members();
    announce(0, 'a', 7, 1);
    expect(announce(2.9, 'a', 7, 5)).toEqual([]);
    expect(wake(3)).toEqual([]);
    for (const number of [5, 4, 1]) expect(announce(5, 'a', 7, number)).toEqual([]);
    expect(wake(5.9)).toEqual(['a.7 sent no heartbeat']);
    expect(announce(6, 'a', 7, 5)).toEqual([]);
  });

  test('admits a suspended process again in the same incarnation', () => {
    const { announce, wake } = members();
    announce(0, 'a', 1, 1);
    expect(wake(10)).toEqual(['a.1 sent no heartbeat']);
    expect(announce(11, 'a', 1, 2)).toEqual(['joined a.1']);
  });

  test('handles announcements of a suspension of its own before it declares failures', () => {
    const { announce, wake } = members();
    announce(0, 'a', 1, 1);
    expect(announce(20, 'a', 1, 9)).toEqual([]);
    expect(wake(20)).toEqual([]);
  });

  test('a restart replaces the earlier incarnation, and announcements of that one are late from then on', () => {
    const { membership, announce } = members();
    announce(0, 'a', 5, 3);
    expect(announce(1, 'a', 6, 1)).toEqual(['a.5 restarted', 'joined a.6']);
    expect(announce(1.1, 'a', 5, 4)).toEqual([]);
    expect([membership.has('a', 5), membership.has('a', 6)]).toEqual([false, true]);
  });

  test('a clock that was set back excludes a process for two timeouts at most', () => {
    const { announce, wake, step } = members();
    announce(0, 'a', 5, 1);
    step(1, { kind: 'left', name: 'a', incarnation: 5 });
    expect(announce(6.9, 'a', 4, 1)).toEqual([]);
    expect(announce(7, 'a', 4, 2)).toEqual(['joined a.4']);
    expect(wake(10)).toEqual(['a.4 sent no heartbeat']);
  });

  test('a process that leaves is lost at once and does not return in that incarnation', () => {
    const { announce, step } = members();
    announce(0, 'a', 1, 1);
    expect(step(1, { kind: 'left', name: 'a', incarnation: 0 })).toEqual([]);
    expect(step(1, { kind: 'left', name: 'a', incarnation: 1 })).toEqual(['a.1 left']);
    expect(step(1, { kind: 'left', name: 'a', incarnation: 1 })).toEqual([]);
    expect(announce(1.1, 'a', 1, 2)).toEqual([]);
    expect(announce(1.2, 'a', 2, 1)).toEqual(['joined a.2']);
  });

  test('after lost messages the next announcement starts a new session', () => {
    const { announce, step } = members();
    announce(0, 'a', 1, 1);
    expect(step(0, { kind: 'broken', name: 'a', incarnation: 1 })).toEqual(['a.1 lost messages']);
    expect(step(0, { kind: 'broken', name: 'a', incarnation: 1 })).toEqual([]);
    expect(announce(0.5, 'a', 1, 2)).toEqual(['joined a.1']);
  });

  test('declares no failure while disconnected, and restarts all timeouts after the reconnect', () => {
    const { membership, announce, wake, step } = members();
    announce(0, 'a', 1, 1);
    step(1, { kind: 'connection', up: false });
    expect(membership.nextUs).toBe(Number.POSITIVE_INFINITY);
    expect(wake(60)).toEqual([]);
    step(60, { kind: 'connection', up: true });
    expect(membership.nextUs).toBe(63 * second);
    expect(wake(62.9)).toEqual([]);
    expect(wake(63)).toEqual(['a.1 sent no heartbeat']);
  });

  test('refuses an unfit process once for each of its incarnations', () => {
    const { membership, announce, wake } = members(({ incarnation }) => (incarnation < 3 ? 'too old' : undefined));
    expect(announce(0, 'a', 1, 1)).toEqual(['refused a: too old']);
    expect(announce(0.5, 'a', 1, 2)).toEqual([]);
    expect(wake(9)).toEqual([]);
    expect(announce(10, 'a', 2, 1)).toEqual(['refused a: too old']);
    expect(membership.has('a', 2)).toBe(false);
    expect(announce(11, 'a', 3, 1)).toEqual(['joined a.3']);
  });

  test('remembers failed processes in bounded memory, and live ones always', () => {
    const { membership, announce, step } = members();
    announce(0, 'alive', 1, 1);
    for (let i = 0; i < 3_000; i++) step(0, { kind: 'left', name: `gone-${i}`, incarnation: 1 });
    expect(membership.has('alive', 1)).toBe(true);
    expect(announce(1, 'gone-2999', 1, 1)).toEqual([]);
    expect(announce(1, 'gone-0', 1, 1)).toEqual(['joined gone-0.1']);
  });
});
