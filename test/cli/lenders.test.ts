// Which instances of one command lend one another memory, and how far a request may reach then.
import { expect, it } from 'vitest';
import { servedLending } from '../../src/cli/options/borrow-options.ts';
import { readOptions, serveOptionsSchema } from '../../src/cli/options/options.ts';
import { reachBytes } from '../../src/cli/serve/live-borrowing.ts';

const mixed = { role: 'mixed', hostMemory: 64 };
const store = { role: 'store', hostMemory: 64 };

it('two that compute are needed: stores lend nothing', () => {
  const options = readOptions(serveOptionsSchema, { borrow: true, lendHost: '0.5' });
  expect(() => servedLending({ ...options, instances: [mixed, store] })).toThrow('two --instances that compute');
  expect(servedLending({ ...options, instances: [mixed, mixed] })?.lentHostBytes).toBe(32);
});

it('host memory of each counts as it is', () => {
  const rules = readOptions(serveOptionsSchema, { borrow: true, lendShare: '1', lendHost: '1' });
  const reach = (...hostBytes: number[]) =>
    reachBytes(
      hostBytes.map((bytes) => ({ kvBytes: 1000, hostBytes: bytes })),
      1,
      rules,
    );
  expect(reach(1000, 1000) - reach(0, 0)).toBeGreaterThan(1900);
  // Who has none reaches the other's, who has it reaches its own.
  expect(reach(1000, 0) - reach(0, 0)).toBeGreaterThan(900);
  expect(reach(1000, 0)).toBeLessThan(reach(1000, 1000) - 900);
});
