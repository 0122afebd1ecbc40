// Who is there: announcements that are lost, doubled and late, processes that fall silent, leave, start anew, and come back.
import { describe, expect, test } from 'vitest';
import { type Announcement, Membership, type MembershipEvent } from '../../../src/core/membership/liveness.ts';

const second = 1_000_000;

function members(refuses?: (announcement: Announcement) => string | undefined) {
  const membership = new Membership({ silentUs: 3 * second, ...(refuses && { refuses }) });
  const tell = (atS: number, event: MembershipEvent<Announcement>) =>
    membership.step(atS * second, event).map((effect) => {
      if (effect.kind === 'joined') return `joined ${effect.member.name}.${effect.member.incarnation}`;
      return effect.kind === 'lost'
        ? `${effect.name}.${effect.incarnation} ${effect.why}`
        : `refused ${effect.name}: ${effect.why}`;
    });
  return {
    membership,
    say: (atS: number, name: string, incarnation: number, number: number) =>
      tell(atS, { kind: 'announced', announcement: { name, incarnation, number } }),
    wake: (atS: number) => tell(atS, { kind: 'wake' }),
    tell,
  };
}

describe('membership', () => {
  test('who announces itself has joined, and is lost when it falls silent', () => {
    const { membership, say, wake } = members();
    expect(membership.nextUs).toBe(Number.POSITIVE_INFINITY);
    expect(say(0, 'a', 1, 1)).toEqual(['joined a.1']);
    expect(say(1, 'b', 1, 1)).toEqual(['joined b.1']);
    expect(say(2, 'a', 1, 2)).toEqual([]);
    expect(membership.nextUs).toBe(4 * second);
    expect(wake(4)).toEqual(['b.1 fell silent']);
    expect([membership.has('a', 1), membership.has('b', 1)]).toEqual([true, false]);
  });

  test('lost announcements matter when too many are lost in a row; doubled and late ones never', () => {
    const { say, wake } = members();
    say(0, 'a', 7, 1);
    expect(say(2.9, 'a', 7, 5)).toEqual([]);
    expect(wake(3)).toEqual([]);
    for (const number of [5, 4, 1]) expect(say(5, 'a', 7, number)).toEqual([]);
    expect(wake(5.9)).toEqual(['a.7 fell silent']);
    expect(say(6, 'a', 7, 5)).toEqual([]);
  });

  test('one that was paused joins anew in the same life', () => {
    const { say, wake } = members();
    say(0, 'a', 1, 1);
    expect(wake(10)).toEqual(['a.1 fell silent']);
    expect(say(11, 'a', 1, 2)).toEqual(['joined a.1']);
  });

  test('whoever could not run itself hears first what came meanwhile', () => {
    const { say, wake } = members();
    say(0, 'a', 1, 1);
    expect(say(20, 'a', 1, 9)).toEqual([]);
    expect(wake(20)).toEqual([]);
  });

  test('a new start is another one, and what its old start still says is late', () => {
    const { membership, say } = members();
    say(0, 'a', 5, 3);
    expect(say(1, 'a', 6, 1)).toEqual(['a.5 was started anew', 'joined a.6']);
    expect(say(1.1, 'a', 5, 4)).toEqual([]);
    expect([membership.has('a', 5), membership.has('a', 6)]).toEqual([false, true]);
  });

  test('a clock that was set back keeps nobody out for long', () => {
    const { say, wake, tell } = members();
    say(0, 'a', 5, 1);
    tell(1, { kind: 'left', name: 'a', incarnation: 5 });
    expect(say(6.9, 'a', 4, 1)).toEqual([]);
    expect(say(7, 'a', 4, 2)).toEqual(['joined a.4']);
    expect(wake(10)).toEqual(['a.4 fell silent']);
  });

  test('who says that it goes is lost at once and does not come back in that life', () => {
    const { say, tell } = members();
    say(0, 'a', 1, 1);
    expect(tell(1, { kind: 'left', name: 'a', incarnation: 0 })).toEqual([]);
    expect(tell(1, { kind: 'left', name: 'a', incarnation: 1 })).toEqual(['a.1 left']);
    expect(tell(1, { kind: 'left', name: 'a', incarnation: 1 })).toEqual([]);
    expect(say(1.1, 'a', 1, 2)).toEqual([]);
    expect(say(1.2, 'a', 2, 1)).toEqual(['joined a.2']);
  });

  test('after a break both begin anew with the next announcement', () => {
    const { say, tell } = members();
    say(0, 'a', 1, 1);
    expect(tell(0, { kind: 'broken', name: 'a', incarnation: 1 })).toEqual(['a.1 lost the thread']);
    expect(tell(0, { kind: 'broken', name: 'a', incarnation: 1 })).toEqual([]);
    expect(say(0.5, 'a', 1, 2)).toEqual(['joined a.1']);
  });

  test('while nobody can be heard, nobody is judged; after that all have their time again', () => {
    const { membership, say, wake, tell } = members();
    say(0, 'a', 1, 1);
    tell(1, { kind: 'connection', up: false });
    expect(membership.nextUs).toBe(Number.POSITIVE_INFINITY);
    expect(wake(60)).toEqual([]);
    tell(60, { kind: 'connection', up: true });
    expect(membership.nextUs).toBe(63 * second);
    expect(wake(62.9)).toEqual([]);
    expect(wake(63)).toEqual(['a.1 fell silent']);
  });

  test('who cannot be one of us is refused once for each of its lives', () => {
    const { membership, say, wake } = members(({ incarnation }) => (incarnation < 3 ? 'too old' : undefined));
    expect(say(0, 'a', 1, 1)).toEqual(['refused a: too old']);
    expect(say(0.5, 'a', 1, 2)).toEqual([]);
    expect(wake(9)).toEqual([]);
    expect(say(10, 'a', 2, 1)).toEqual(['refused a: too old']);
    expect(membership.has('a', 2)).toBe(false);
    expect(say(11, 'a', 3, 1)).toEqual(['joined a.3']);
  });

  test('those that are away are remembered in bounded memory, those that are there always', () => {
    const { membership, say, tell } = members();
    say(0, 'there', 1, 1);
    for (let i = 0; i < 3_000; i++) tell(0, { kind: 'left', name: `gone-${i}`, incarnation: 1 });
    expect(membership.has('there', 1)).toBe(true);
    expect(say(1, 'gone-2999', 1, 1)).toEqual([]);
    expect(say(1, 'gone-0', 1, 1)).toEqual(['joined gone-0.1']);
  });
});
