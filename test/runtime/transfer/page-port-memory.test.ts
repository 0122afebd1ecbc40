// A page port without memory for a thread refuses connections, and accepts them once there is some.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';
import { leftToUs } from '../../children.ts';

const addon = join(root, 'build', 'kvasir.node');
const canLimit = process.platform === 'linux' && spawnSync('prlimit', ['--version']).status === 0;

/** Listens, and prints the port, then for each line the connections that have not proved the key. */
const program = `
  const addon = require(process.argv[1]);
  const pool = addon.createPool(addon.createBackend(addon.detectIsa(), 1), 1, 1, 64, 4, 0);
  const receiver = addon.createReceiver(pool, '127.0.0.1', 0, 1, new Uint8Array(32));
  console.log(addon.receiverPort(receiver));
  process.stdin.on('data', () => console.log(addon.receiverCounts(receiver).refused));
`;

it.skipIf(!canLimit || !existsSync(addon))(
  'a connection for which no thread or memory is left ends alone, and not the process (needs Linux, prlimit and the compiled addon)',
  async () => {
    const child = leftToUs(spawn(process.execPath, ['-e', program, addon], { stdio: ['pipe', 'pipe', 'inherit'] }));
    const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
    const port = Number((await lines.next()).value);
    // Without addresses neither memory nor the stack of a thread can be had; this limit holds for the superuser too.
    const limit = (bytes: string) => spawnSync('prlimit', ['--pid', `${child.pid}`, `--as=${bytes}:`]).status;
    const threads = () => readdirSync(`/proc/${child.pid}/task`).length;
    const before = threads();
    expect(limit('1')).toBe(0);
    const refused = connect(port, '127.0.0.1').on('error', () => {});
    await once(refused.resume(), 'close');
    expect(limit('unlimited')).toBe(0);
    child.stdin.write('\n');
    // No thread has served it: it is not among those that failed to prove the key.
    expect([(await lines.next()).value, child.exitCode, child.signalCode]).toEqual(['0', null, null]);
    const served = connect(port, '127.0.0.1').on('error', () => {});
    await expect.poll(threads, { timeout: 60_000 }).toBe(before + 1);
    served.destroy();
    child.kill('SIGKILL');
  },
);
