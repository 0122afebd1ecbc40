// Lending between the instances of a command, and the memory limit of a request.
import { expect, it } from 'vitest';
import { servedLending } from '../../src/cli/options/borrow-options.ts';
import { readOptions, serveOptionsSchema } from '../../src/cli/options/options.ts';
import { requestKvBytes } from '../../src/cli/serve/live-borrowing.ts';

const mixed = { role: 'mixed', hostMemory: 64 };
const store = { role: 'store', hostMemory: 64 };

it('needs two instances that compute: stores do not lend', () => {
  const options = readOptions(serveOptionsSchema, { borrow: true, lendHost: '0.5' });
  expect(() => servedLending({ ...options, instances: [mixed, store] })).toThrow('two --instances that compute');
  expect(servedLending({ ...options, instances: [mixed, mixed] })?.lentHostBytes).toBe(32);
});

it('counts the host memory of each instance', () => {
  const rules = readOptions(serveOptionsSchema, { borrow: true, lendShare: '1', lendHost: '1' });
  const requestBytes = (...hostBytes: number[]) =>
    requestKvBytes(
      hostBytes.map((bytes) => ({ kvBytes: 1000, hostBytes: bytes })),
      1,
      rules,
    );
  expect(requestBytes(1000, 1000) - requestBytes(0, 0)).toBeGreaterThan(1900);
  // The instance without host memory uses that of the other, and the other one its own.
  expect(requestBytes(1000, 0) - requestBytes(0, 0)).toBeGreaterThan(900);
  expect(requestBytes(1000, 0)).toBeLessThan(requestBytes(1000, 1000) - 900);
});
