// The cluster agreement: which process sets it, which one is refused, and when it may change.

import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type Agreement, agree, identityOf, reconcile } from '../../../src/core/membership/agreement.ts';

const root = { modelFingerprint: 'm', weightForm: 'q8', inputForm: 'bf16', kvType: 'bf16', rope: '[]' };
const gateway = { modelFingerprint: 'm', root: undefined };
const instance = { modelFingerprint: 'm', root };
const drawn = { token: 'drawn first', mark: '1' };
const stored: Agreement = { ...instance, hashKey: [1, 2, 3, 4], pages: drawn };
const fresh = { hashKey: [5, 6, 7, 8], pages: { token: 'drawn later', mark: '2' } };
const other = { ...fresh, hashKey: [0, 0, 0, 0] };

test('the first process sets the agreement, and the first instance adds its formats', () => {
  const begun = { ...gateway, hashKey: fresh.hashKey, pages: undefined };
  const joined = { ...instance, ...fresh };
  expect(agree(undefined, gateway, fresh, false)).toEqual({ kind: 'write', agreement: begun });
  expect(agree(undefined, instance, fresh, false)).toEqual({ kind: 'write', agreement: joined });
  expect(agree(begun, instance, other, undefined)).toEqual({ kind: 'write', agreement: joined });
  expect(agree(begun, gateway, other, undefined)).toEqual({ kind: 'agreed', agreement: begun });
  expect(agree(stored, instance, fresh, undefined)).toEqual({ kind: 'agreed', agreement: stored });
});

test.each([
  ['another model', { modelFingerprint: 'n', root: undefined }, 'fingerprint m, this one has n'],
  [
    'another model of an instance',
    { modelFingerprint: 'n', root: { ...root, modelFingerprint: 'n' } },
    'fingerprint m',
  ],
  ['another form', { modelFingerprint: 'm', root: { ...root, weightForm: 'q4' } }, 'weights q8, this one has q4'],
  ['other inputs', { modelFingerprint: 'm', root: { ...root, inputForm: 'f32' } }, 'inputs bf16, this one has f32'],
])('%s is refused while other processes are alive, and replaces the agreement of none', (_, own, why) => {
  expect(agree(stored, own, fresh, undefined)).toEqual({ kind: 'discover' });
  expect(agree(stored, own, fresh, true)).toEqual({ kind: 'refused', why: expect.stringContaining(why) });
  expect(agree(stored, own, fresh, false)).toEqual({
    kind: 'write',
    agreement: { ...own, hashKey: [1, 2, 3, 4], pages: own.root && fresh.pages },
  });
});

test('a gateway without peers leaves the formats to the first instance; with peers it accepts theirs', () => {
  expect(agree(stored, gateway, fresh, undefined)).toEqual({ kind: 'discover' });
  expect(agree(stored, gateway, fresh, true)).toEqual({ kind: 'agreed', agreement: stored });
  expect(agree(stored, gateway, fresh, false)).toEqual({
    kind: 'write',
    agreement: { ...gateway, hashKey: stored.hashKey, pages: undefined },
  });
});

test('an instance with a chosen input form takes that of running processes, and sets its own without any', () => {
  const rootIn = (inputForm: string) => ({ ...root, inputForm, kvType: inputForm === 'f32' ? 'f32' : 'bf16' });
  const chosen = { ...instance, root: { ...root, inputForm: 'i16' }, rootIn };
  expect(agree(stored, chosen, fresh, undefined)).toEqual({ kind: 'discover' });
  expect(agree(stored, chosen, fresh, true)).toEqual({ kind: 'agreed', agreement: stored });
  expect(agree(stored, chosen, fresh, false)).toMatchObject({ kind: 'write', agreement: { root: chosen.root } });
  expect(agree(stored, { ...chosen, root }, fresh, undefined)).toEqual({ kind: 'agreed', agreement: stored });
  const floats = { ...stored, root: { ...root, inputForm: 'f32', kvType: 'f32' } };
  expect(agree(floats, chosen, fresh, true)).toEqual({ kind: 'agreed', agreement: floats });
  const otherWeights = { ...chosen, rootIn: (inputForm: string) => ({ ...rootIn(inputForm), weightForm: 'q4' }) };
  expect(agree(stored, otherWeights, fresh, true)).toMatchObject({ kind: 'refused' });
  const otherKv = { ...stored, root: { ...root, kvType: 'q8' } };
  const differs = 'the cluster has keys and values q8, this one has bf16';
  expect(agree(otherKv, chosen, fresh, true)).toEqual({ kind: 'refused', why: differs });
  const given = { ...chosen, rootIn: undefined };
  const why = 'the cluster has inputs bf16, this one has i16';
  expect(agree(stored, given, fresh, true)).toEqual({ kind: 'refused', why });
});

test('the page token is random, or given to every process', () => {
  const given = { ...instance, tokenMark: '7' };
  const pages = { token: undefined, mark: '7' };
  expect(agree(undefined, given, fresh, false)).toMatchObject({ agreement: { pages } });
  expect(agree({ ...stored, pages }, given, fresh, undefined)).toMatchObject({ kind: 'agreed', agreement: { pages } });
  expect(agree({ ...stored, pages }, gateway, fresh, true)).toMatchObject({ kind: 'agreed' });
  const refusal = (held: Agreement['pages'], own: typeof instance) =>
    agree({ ...stored, pages: held }, own, fresh, true);
  expect(refusal(pages, instance)).toEqual({ kind: 'refused', why: 'it has a token, and this one was given none' });
  const otherToken = 'it has another token than this one was given';
  expect(refusal(drawn, given)).toEqual({ kind: 'refused', why: otherToken });
  expect(refusal({ ...pages, mark: '8' }, given)).toEqual({ kind: 'refused', why: otherToken });
  expect(agree(stored, given, fresh, false)).toMatchObject({ kind: 'write', agreement: { pages } });
});

test('without a record a joining process looks for live members, and waits until they restore it', () => {
  for (const own of [gateway, instance]) {
    expect(agree(undefined, own, fresh, undefined)).toEqual({ kind: 'discover' });
    expect(agree(undefined, own, fresh, true)).toEqual({ kind: 'wait' });
  }
});

test('members restore a lost record, and complete a partial one; they change nothing else', () => {
  const restored = { ...stored, restored: true };
  const less = { ...gateway, hashKey: stored.hashKey, pages: undefined };
  expect(reconcile(undefined, stored)).toEqual({ kind: 'write', agreement: restored });
  expect(reconcile(undefined, less)).toEqual({ kind: 'write', agreement: { ...less, restored: true } });
  expect(reconcile({ ...less, restored: true }, stored)).toEqual({ kind: 'write', agreement: restored });
  expect(reconcile(restored, less)).toEqual({ kind: 'consistent', held: restored });
  expect(reconcile(stored, stored)).toEqual({ kind: 'consistent', held: stored });
  // The first instance adds its formats to a restored record.
  expect(agree({ ...less, restored: true }, instance, fresh, undefined)).toMatchObject({
    agreement: { restored: true },
  });
  for (const [other, why] of [
    [{ ...stored, hashKey: fresh.hashKey }, 'key'],
    [{ ...stored, modelFingerprint: 'n' }, 'model'],
    [{ ...stored, root: { ...root, weightForm: 'q4' } }, 'weights q4'],
    [{ ...stored, pages: fresh.pages }, 'token'],
  ] as const)
    expect(reconcile(other, stored)).toEqual({ kind: 'differs', why: expect.stringContaining(why) });
});

test('members restore the whole record in any order', () => {
  const ofGateway = { ...gateway, hashKey: stored.hashKey, pages: undefined };
  const members = fc.constantFrom<Agreement>(ofGateway, stored, { ...stored, root }, ofGateway);
  fc.assert(
    fc.property(fc.array(members, { minLength: 1, maxLength: 6 }), (alive) => {
      let record: Agreement | undefined;
      const held = [...alive];
      for (let round = 0; round < 2; round++)
        for (const [i, own] of held.entries()) {
          const decision = reconcile(record, own);
          if (decision.kind === 'write') record = decision.agreement;
          else if (decision.kind === 'consistent') held[i] = decision.held;
          else throw new Error(decision.why);
        }
      const all = alive.some(({ pages }) => pages !== undefined) ? stored : ofGateway;
      expect(record).toEqual({ ...all, restored: true });
    }),
  );
});

test('equal formats and keys give equal block identities', () => {
  const identity = identityOf(root, stored.hashKey);
  expect(identity).toMatch(/^[0-9a-f]{32}$/);
  expect(identityOf({ ...root }, [1, 2, 3, 4])).toBe(identity);
  expect(identityOf(root, fresh.hashKey)).not.toBe(identity);
  expect(identityOf({ ...root, weightForm: 'q4' }, stored.hashKey)).not.toBe(identity);
});
