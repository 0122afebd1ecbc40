// Validates lending messages from a wire. The machines rely on it.
import type { Envelope, LendingMessageKind } from '../protocol/lending-messages.ts';
import { linkTransports } from '../protocol/lending-report.ts';

type Check = (value: unknown, field: string) => void;
type Shape = Readonly<Record<string, Check>>;

/** Largest number of entries in a list. */
const entriesMax = 1 << 20;

function reject(field: string, value: unknown, expected: string): never {
  const shown =
    typeof value === 'number' || typeof value === 'string' ? JSON.stringify(value).slice(0, 40) : typeof value;
  throw new Error(`Cannot read a lending message: ${field} must be ${expected}: ${shown}`);
}

function integer(least: number, most: number = Number.MAX_SAFE_INTEGER): Check {
  return (value, field) => {
    if (!Number.isSafeInteger(value) || (value as number) < least || (value as number) > most)
      reject(field, value, `an integer of ${least} to ${most}`);
  };
}

function oneOf(...names: readonly string[]): Check {
  return (value, field) => {
    if (!names.includes(value as string)) reject(field, value, `one of ${names.join(', ')}`);
  };
}

function optional(check: Check): Check {
  return (value, field) => {
    if (value !== undefined) check(value, field);
  };
}

function listOf(check: Check): Check {
  return (value, field) => {
    if (!Array.isArray(value) || value.length > entriesMax) reject(field, value, `a list of at most ${entriesMax}`);
    for (const [i, entry] of value.entries()) check(entry, `${field}[${i}]`);
  };
}

function record(shape: Shape): Check {
  return (value, field) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) reject(field, value, 'an object');
    const prefix = field === '' ? '' : `${field}.`;
    for (const [name, check] of Object.entries(shape)) check(Reflect.get(value, name), prefix + name);
  };
}

const instance = integer(0, 0xffff);
const count = integer(0, 0x7fffffff);
const positive = integer(1, 0x7fffffff);
const number = integer(0);
const permille = integer(0, 1000);
const flag: Check = (value, field) => {
  if (typeof value !== 'boolean') reject(field, value, 'true or false');
};
const memory = oneOf('device', 'host');
const blocks = listOf(count);
const settlement = record({ epoch: number, number });

/** Any figure is accepted: `linkFigures` brings it within its bounds. */
const link = record({
  peer: instance,
  transport: optional(oneOf(...linkTransports)),
  roundTripUs: optional(number),
  bytesPerSecond: optional(number),
});

const report = record({
  sequence: integer(1),
  lendable: record({ device: count, host: count }),
  lendableLater: record({ device: count, host: count }),
  recallable: record({ device: count, host: count }),
  reservation: optional(number),
  debts: listOf(record({ creditor: instance, memory, blocks: count })),
  loans: listOf(record({ debtor: instance, memory, blocks: count })),
  stagingBlocks: optional(count),
  links: optional(listOf(link)),
});

/** Fields of each message kind, without `kind`. */
const shapes: Readonly<Record<LendingMessageKind, Shape>> = {
  heartbeat: { report },
  query: {
    query: number,
    memory,
    blocks: count,
    reservation: optional(record({ number, blocks: count })),
    urgent: flag,
    refusals: listOf(record({ instance, incarnation: number, memory, sequence: number })),
  },
  prepared: { settlement, blocks: count },
  declined: { settlement },
  settled: { settlement },
  outcome: { settlement },
  candidates: {
    query: number,
    creditors: listOf(record({ instance, incarnation: number, blocks: count })),
    reservation: optional(number),
  },
  prepare: { settlement, creditor: instance, memory, blocks: positive },
  commit: { settlement },
  abort: { settlement },
  borrow: { loan: number, memory, blocks: positive, reserves: flag, urgent: flag, closedBelow: number },
  renew: {
    stamp: number,
    loans: listOf(number),
    committed: listOf(number),
    reservationEnded: flag,
    closedBelow: number,
  },
  return: { loan: number, blocks: optional(blocks), closedBelow: number },
  lend: { loan: number, blocks, leaseUs: positive, remoteAttentionPermille: permille },
  refuse: { loan: number, memory, sequence: number },
  renewed: {
    stamp: number,
    loans: listOf(record({ loan: number, keep: number, remoteAttentionPermille: permille })),
    unknown: listOf(number),
  },
  returned: { loan: number, blocks: optional(blocks) },
  recall: { loan: number, keep: number },
  restarted: {},
};

const party: Check = (value, field) => {
  if (value !== 'gmanager') instance(value, field);
};

const message: Check = (value, field) => {
  const kind = typeof value === 'object' && value !== null ? Reflect.get(value, 'kind') : undefined;
  oneOf(...Object.keys(shapes))(kind, `${field}.kind`);
  record({ kind: oneOf(kind as string), ...shapes[kind as LendingMessageKind] })(value, field);
};

const envelope = record({ from: party, fromIncarnation: number, to: party, toIncarnation: optional(number), message });

/**
 * Checks the fields of an envelope; the machines judge its contents. Fields that a later release adds are ignored.
 * @throws Error that names the field at fault
 */
export function parseEnvelope(value: unknown): Envelope {
  envelope(value, '');
  return value as Envelope;
}
