// KV pages between processes over shared memory: a stopped receiver blocks only its sender, and transfers to a killed one are cancelled.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as pass } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createNativeBackend, loadNative } from '../../../src/kernel/native/native.ts';
import { NativeRemoteMessenger } from '../../../src/kernel/native/remote-messenger.ts';

const spec = { type: 'bf16', kvHeads: 8, headDim: 64, pages: 64 } as const;
const options = { host: '127.0.0.1', token: 'a secret', transport: 'shared', giveUpMs: 300 } as const;

/** For each input line, opens a receive buffer on all pages and prints its name; prints completed buffers. */
const receiver = `
import { createInterface } from 'node:readline';
const dist = new URL('dist/kernel/native/', 'file://' + process.cwd() + '/');
const { createNativeBackend } = await import(new URL('native.js', dist));
const { NativeRemoteMessenger } = await import(new URL('remote-messenger.js', dist));
const pool = createNativeBackend({ threads: 1 }).createKvPool(${JSON.stringify(spec)});
const messenger = new NativeRemoteMessenger(pool, ${JSON.stringify(options)}, () => {
  for (const buffer of messenger.received()) console.log('received ' + buffer);
});
const pages = Int32Array.from({ length: ${spec.pages} }, (_, i) => i);
createInterface({ input: process.stdin }).on('line', () => console.log('open ' + messenger.open(pages)));
`;

describe.skipIf(loadNative() === undefined || process.platform !== 'linux')('pages over shared memory', () => {
  const backend = createNativeBackend({ threads: 1 });
  const messenger = new NativeRemoteMessenger(backend.createKvPool(spec), options, () => {});
  // 256 MiB: each page many times.
  const descriptors = Int32Array.from({ length: 3 * 4096 }, (_, i) =>
    i % 3 === 0 ? 0 : Math.floor(i / 3) % spec.pages,
  );
  const total = 4096 * 2 ** 16;
  let child: ChildProcess;
  let lines: AsyncIterator<string>;
  const nextLine = async (): Promise<string> => (await lines.next()).value;
  const open = async (): Promise<string> => {
    child.stdin?.write('\n');
    return (await nextLine()).replace('open ', '');
  };
  /** Resolves when some of the sent bytes have left. */
  const begins = async (before: number): Promise<void> => {
    while (messenger.counts.bytes === before) await pass(1);
  };

  beforeAll(() => {
    child = spawn(process.execPath, ['--input-type=module', '-e', receiver], { stdio: ['pipe', 'pipe', 'inherit'] });
    if (child.stdout === null) throw new Error('no output');
    lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  });
  afterAll(() => {
    child.kill('SIGKILL');
    messenger.free();
    backend.close();
  });

  it('arrive when a stopped process continues', async () => {
    const buffer = await open();
    messenger.send(buffer, 0, descriptors, true);
    await begins(0);
    child.kill('SIGSTOP');
    // Until the rings are full, or all pages have arrived.
    for (let sent = 0; sent !== messenger.counts.bytes; await pass(20)) sent = messenger.counts.bytes;
    child.kill('SIGCONT');
    expect(await nextLine()).toBe(`received ${buffer}`);
    // Unacknowledged pages would be cancelled with the process.
    while (messenger.pending(buffer) > 0) await pass(1);
    expect(messenger.counts).toMatchObject({ bytes: total, faults: 0 });
  });

  it('are cancelled when the receiving process is killed during the transfer', async () => {
    const buffer = await open();
    messenger.send(buffer, 0, descriptors, true);
    await begins(total);
    child.kill('SIGKILL');
    await once(child, 'exit');
    const unreachable: string[] = [];
    while (unreachable.length === 0) {
      unreachable.push(...messenger.unreachable());
      await pass(1);
    }
    expect(unreachable).toEqual([buffer]);
    expect(messenger.counts.faults).toBeGreaterThan(0);
  });
});
