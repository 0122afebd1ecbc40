// The cluster's record over a bus whose records can be lost: who says it again, and for how long whoever comes is told so.
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { Agreement } from '../../src/cluster/agreement.ts';
import { agreeOn } from '../../src/live/agree.ts';
import { MemoryHub } from '../../src/live/bus/memory-hub.ts';
import { sayMissing } from '../../src/live/upheld.ts';
import { readAgreement } from '../../src/live/wire/agreement-record.ts';
import { settled } from './bus/settled.ts';
import { lose, UnsteadyBus } from './unsteady-bus.ts';

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '[]' };
const instance = { modelFingerprint: 'm', root };

let hub: MemoryHub;
let ends: UnsteadyBus[];
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  [hub, ends] = [new MemoryHub(), []];
});
afterEach(async () => {
  vi.useRealTimers();
  for (const end of ends) await end.close();
});

function end(): UnsteadyBus {
  const made = new UnsteadyBus(hub.connect());
  ends.push(made);
  return made;
}

async function pass(ms: number): Promise<void> {
  await settled();
  vi.advanceTimersByTime(ms);
  await settled();
}

/** It listens for a second, and the others for no longer. */
async function comes(bus: UnsteadyBus, log?: (line: string) => void): Promise<Agreement> {
  const agreed = agreeOn(bus, instance, log);
  await pass(1_000);
  return agreed;
}

async function agreementOf({ records }: UnsteadyBus): Promise<Agreement | undefined> {
  const stored = await records.read('agreement');
  return stored && readAgreement(stored.value);
}

it('says that it was lost until all who are there have had time to say theirs again, and no longer', async () => {
  const [first, other] = [end(), end()];
  const agreed = await comes(first);
  await comes(other);
  const before = await agreementOf(other);
  expect(before?.hashKey).toEqual(agreed.hashKey);
  expect(before?.again).toBeUndefined();
  await lose(first, 'agreement');
  sayMissing(other);
  await settled();
  expect(await agreementOf(other)).toEqual({ ...before, again: true });
  expect((await comes(end())).again).toBe(true);
  await pass(60_000);
  // Something may have been lost again.
  sayMissing(other);
  await pass(119_999);
  expect(await agreementOf(other)).toEqual({ ...before, again: true });
  await pass(1);
  expect(await agreementOf(other)).toEqual(before);
  expect((await comes(end())).again).toBeUndefined();
});

it('is mended by whoever comes where those who said it again are gone, and not by who is cut off', async () => {
  const [first, cut] = [end(), end()];
  await comes(first);
  await comes(cut);
  const before = await agreementOf(first);
  await lose(first, 'agreement');
  sayMissing(first);
  await settled();
  await first.close();
  cut.connect(false);
  await pass(600_000);
  const late = end();
  expect(await comes(late)).toMatchObject({ again: true });
  await pass(118_999);
  cut.connect(true);
  await settled();
  await pass(1_000);
  expect(await agreementOf(late)).toEqual(before);
});
