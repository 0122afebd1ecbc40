// Hand-offs of a gateway between engines of a cluster: answers that come twice, late, or from another engine.
import { describe, expect, it } from 'vitest';
import { JoinedHandOffs } from '../../../src/runtime/fleet/joined-hand-offs.ts';
import { liveRequest } from '../threads/instances.ts';

const engine = { kind: 'vllm', order: 'sequential', host: 'h', port: 7 } as const;
const prefilled = { kind: 'prefilled', params: '{"blocks":[1]}' } as const;

function open(order: 'sequential' | 'concurrent' | 'queried' = 'sequential') {
  const sent: string[] = [];
  const handOffs = new JoinedHandOffs({
    send: (instance, command) => {
      const { engineCall } = command.kind === 'submit' ? command : {};
      sent.push([instance, command.kind, engineCall?.leg ?? ''].join(' ').trim());
    },
    cachedTokensAt: () => 0,
    prefilled: (instance, id) => sent.push(`${instance} reports ${id}`),
    released: (instance, _, why, refusal) => sent.push(`${instance} releases: ${why} ${refusal?.code ?? ''}`.trim()),
  });
  handOffs.start(liveRequest('a', [1, 2, 3], 4), 0, { ...engine, order }, 1);
  return { handOffs, take: () => sent.splice(0) };
}

describe('JoinedHandOffs', () => {
  it('takes one answer of the prefill engine, and none of another instance', () => {
    const { handOffs, take } = open();
    expect(take()).toEqual(['0 submit prefill']);
    handOffs.onPrefillAnswer(2, 'a', prefilled);
    expect(take()).toEqual([]);
    handOffs.onPrefillAnswer(0, 'a', prefilled);
    handOffs.onPrefillAnswer(0, 'a', prefilled);
    handOffs.onPrefillAnswer(0, 'a', { kind: 'failed', why: 'late', overloaded: true });
    expect(take()).toEqual(['0 reports a', '1 submit decode']);
    expect(handOffs.onReleased(['a', 'broke'])).toBe(true);
    expect(take()).toEqual(['1 releases: broke']);
    // The conductor takes a second release, of an attempt that has ended.
    expect([handOffs.onReleased(['a', 'broke']), handOffs.size]).toEqual([false, 0]);
  });

  it('ends both calls of a cancelled request, and ignores what comes later', () => {
    const { handOffs, take } = open('concurrent');
    expect(take()).toEqual(['0 submit prefill', '1 submit decode']);
    handOffs.cancelled('a');
    expect(take()).toEqual(['0 cancel', '1 cancel']);
    handOffs.onPrefillAnswer(0, 'a', prefilled);
    handOffs.observe(1, 'a', { kind: 'finished', reason: 'stop' });
    expect([take(), handOffs.size]).toEqual([[], 0]);
  });

  it('releases by the prefill engine that refuses, and reports an answer to a waiting decode engine', () => {
    const refused = open('concurrent');
    refused.handOffs.onPrefillAnswer(0, 'a', { kind: 'failed', why: 'full', overloaded: true });
    expect(refused.take().slice(2)).toEqual([
      '0 reports a',
      '1 prefilled',
      '1 cancel',
      '0 releases: full KV_OVERLOADED',
    ]);
    const answered = open('concurrent');
    answered.handOffs.onPrefillAnswer(0, 'a', { kind: 'prefilled' });
    expect(answered.take().slice(2)).toEqual(['0 reports a', '1 prefilled']);
  });

  it('lets the decode engine compute alone where the prefill engine fails, or states nothing, or needs a query', () => {
    for (const answer of [
      { kind: 'failed', why: 'broke', overloaded: false } as const,
      { kind: 'prefilled' } as const,
    ]) {
      const { handOffs, take } = open();
      handOffs.onPrefillAnswer(0, 'a', answer);
      expect(take().slice(1)).toEqual(['0 reports a', '1 submit']);
    }
    expect(open('queried').take()).toEqual(['0 reports a', '1 prefilled', '1 submit']);
  });

  it('ends with a request that the prefill instance fails', () => {
    const { handOffs, take } = open('concurrent');
    handOffs.observe(0, 'a', { kind: 'failed', code: 'UNSUPPORTED_REQUEST', message: 'no', retryAfterMs: undefined });
    expect([take().slice(2), handOffs.size]).toEqual([['0 cancel', '1 cancel'], 0]);
  });

  it('drops the hand-offs of an instance that leaves, but not those whose prompt it has handed off', () => {
    const { handOffs, take } = open();
    handOffs.onPrefillAnswer(0, 'a', prefilled);
    handOffs.instanceLeft(0);
    expect(handOffs.size).toBe(1);
    take();
    handOffs.instanceLeft(1);
    expect([take(), handOffs.size]).toEqual([['1 cancel'], 0]);
  });
});
