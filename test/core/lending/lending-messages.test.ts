// Validation of lending messages from a wire.
import { expect, it } from 'vitest';
import { parseEnvelope } from '../../../src/core/lending/parse.ts';
import { LendingWorld } from '../../../src/sim/engine/lending/lending-world.ts';
import { lendingWorld } from '../../../src/sim/faults/lending-chaos.ts';

const borrow = { kind: 'borrow', loan: 1, memory: 'host', blocks: 3, reserves: false, urgent: false, closedBelow: 1 };
const sent = (message: unknown, more: object = {}) => ({
  from: 0,
  fromIncarnation: 1,
  to: 2,
  toIncarnation: 1,
  message,
  ...more,
});

it('accepts every message that the machines send, through JSON', () => {
  const kinds = new Set<string>();
  for (let seed = 1; seed <= 12; seed++) {
    const world = new LendingWorld(lendingWorld(seed));
    const send = world.send.bind(world);
    world.send = (envelope) => {
      kinds.add(envelope.message.kind);
      send(parseEnvelope(JSON.parse(JSON.stringify(envelope))));
    };
    world.run(6_000_000);
  }
  expect(kinds.size).toBeGreaterThanOrEqual(15);
});

it.each([
  [sent({ ...borrow, blocks: -1 }), 'message.blocks must be an integer of 1 to 2147483647: -1'],
  [sent({ ...borrow, memory: 'disk' }), 'message.memory must be one of device, host: "disk"'],
  [sent({ ...borrow, loan: undefined }), 'message.loan must be an integer'],
  [sent({ kind: 'burrow' }), 'message.kind must be one of'],
  [sent({ kind: 'constructor' }), 'message.kind must be one of'],
  [sent(null), 'message.kind must be one of'],
  [sent(borrow, { from: 'conductor' }), 'from must be an integer'],
  [sent(borrow, { fromIncarnation: 0.5 }), 'fromIncarnation must be an integer'],
  [
    sent({ kind: 'lend', loan: 1, blocks: [1, 'x'], leaseUs: 9, remoteAttentionPermille: 1 }),
    'message.blocks[1] must be',
  ],
  [sent({ kind: 'abort', settlement: { epoch: 1 } }), 'message.settlement.number must be'],
  [[], ' must be an object'],
])('refuses %j', (value, why) => {
  expect(() => parseEnvelope(value)).toThrow(`Cannot read a lending message: `);
  expect(() => parseEnvelope(value)).toThrow(why);
});
