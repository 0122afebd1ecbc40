// A child process that is restarted when it exits: its messages, its end, and a start that fails.
import { afterEach, expect, test } from 'vitest';
import { RestartedProcess } from '../../../src/runtime/processes/restarted-process.ts';

const children: RestartedProcess<{ readonly pid: number }>[] = [];
afterEach(() => Promise.all(children.splice(0).map((child) => child.close())));

const sendsPid = 'process.send({ pid: process.pid }); setInterval(() => {}, 1000);';

function start(scripts: readonly string[], killAfterMs = 0) {
  const [lines, exited]: [string[], number[]] = [[], []];
  let starts = 0;
  const child = new RestartedProcess<{ readonly pid: number }>({
    name: 'Child',
    command: () => ['-e', scripts[Math.min(starts++, scripts.length - 1)]],
    env: {},
    ready: ({ pid }) => `is ${pid}`,
    exited: ({ pid }) => exited.push(pid),
    killAfterMs,
    log: (line) => lines.push(line),
  });
  children.push(child);
  return { child, lines, exited };
}

test('a process that exits is restarted, also after a restart that fails', async () => {
  const { child, lines, exited } = start([sendsPid, 'process.exit(3)', sendsPid]);
  const { pid } = await child.ready;
  process.kill(pid, 'SIGKILL');
  await expect.poll(() => lines.filter((line) => line.includes('is ')).length, { timeout: 20_000 }).toBe(4);
  expect(lines[0]).toBe(`Child is ${pid} as process ${pid}`);
  expect(lines[1]).toMatch(/^Child exited with SIGKILL: it is restarted in [\d.]+ s$/);
  expect(lines[2]).toMatch(/^Child exited with code 3: it is restarted in [\d.]+ s$/);
  expect(exited).toEqual([pid]);
}, 30_000);

test('a process that exits at its first start is not restarted', async () => {
  const { child, lines } = start(['process.exit(2)']);
  await expect(child.ready).rejects.toThrow('Cannot serve: Child exited with code 2: the line above has the reason');
  expect(lines).toEqual([]);
});

test.each([0, 200])('ends by SIGKILL if it ignores SIGTERM for %i ms', async (killAfterMs) => {
  const { child } = start([`process.on('SIGTERM', () => {}); ${sendsPid}`], killAfterMs);
  const { pid } = await child.ready;
  await child.close();
  expect(() => process.kill(pid, 0)).toThrow('ESRCH');
});
