// A lock between processes, by files alone: holders take rising numbers, and files of dead holders are skipped.
import { mkdirSync, readdirSync, readFileSync, readlinkSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { rename, rm } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { HubError } from './errors.ts';
import type { HubContext } from './retry.ts';

const heartbeatMs = 5_000;
const pollMs = 200;
/** A holder on another machine without a heartbeat for this long counts as dead. */
const heartbeatTimeoutMs = 90_000;

interface Holder {
  /** Machine and process namespace: process ids are comparable only within one. */
  readonly machine: string;
  readonly pid: number;
  /** Start time of the process, because process ids are reused. */
  readonly started: string;
}

export interface LockWait {
  /** Called once, with a description of the holder. */
  onWait(holder: string): void;
  nowMs?(): number;
}

/**
 * The folder has `kvasir-N.lock` of a holder or `kvasir-N.free` of the last one; the highest N counts. A process takes
 * the lock by creating the file of the next number. Only one process succeeds, so two processes that find the same dead
 * holder cannot both take the lock.
 */
export class FolderLock {
  readonly #folder: string;
  readonly #number: number;
  readonly #heartbeat: NodeJS.Timeout;

  /** @param number of the file that this process has just created: use `acquire` */
  constructor(folder: string, number: number) {
    this.#folder = folder;
    this.#number = number;
    this.#heartbeat = setInterval(() => touch(lockPath(folder, number)), heartbeatMs);
    this.#heartbeat.unref();
  }

  /** Waits while another process holds the lock. @throws HubError (interrupted) */
  static async acquire(folder: string, context: HubContext, wait: LockWait): Promise<FolderLock> {
    const monitor = new HeartbeatMonitor(() => wait.nowMs?.() ?? performance.now());
    for (let reported = false; ; reported = true) {
      const found = await tryLock(folder, monitor);
      if (found instanceof FolderLock) return found;
      if (!reported) wait.onWait(found);
      await context.sleep(pollMs);
      if (context.signal.aborted) throw new HubError('interrupted', `Interrupted while waiting for ${found}`);
    }
  }

  /** The lock, or a description of its holder. */
  static tryAcquire(folder: string): Promise<FolderLock | string> {
    return tryLock(folder, new HeartbeatMonitor(() => performance.now()));
  }

  async release(): Promise<void> {
    clearInterval(this.#heartbeat);
    await rename(lockPath(this.#folder, this.#number), freePath(this.#folder, this.#number)).catch(() => undefined);
  }
}

async function tryLock(folder: string, monitor: HeartbeatMonitor): Promise<FolderLock | string> {
  mkdirSync(folder, { recursive: true });
  const last = newest(folder);
  if (last?.held === true) {
    const holder = readHolder(lockPath(folder, last.number));
    if (!isDead(holder) && !monitor.isSilent(lockPath(folder, last.number), holder)) return describeHolder(holder);
  }
  const number = (last?.number ?? 0) + 1;
  try {
    writeFileSync(lockPath(folder, number), JSON.stringify(thisProcess()), { flag: 'wx' });
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EEXIST') return 'another process';
    throw error;
  }
  // After a slow start this number may already be superseded.
  if ((newest(folder)?.number ?? 0) > number) {
    await rm(lockPath(folder, number), { force: true });
    return 'another process';
  }
  for (const { number: old, name } of entries(folder)) if (old < number) await rm(join(folder, name), { force: true });
  return new FolderLock(folder, number);
}

function lockPath(folder: string, number: number): string {
  return join(folder, `kvasir-${number}.lock`);
}

function freePath(folder: string, number: number): string {
  return join(folder, `kvasir-${number}.free`);
}

interface Entry {
  readonly name: string;
  readonly number: number;
  readonly held: boolean;
}

function entries(folder: string): Entry[] {
  return readdirSync(folder).flatMap((name) => {
    const { number, state } = /^kvasir-(?<number>\d{1,15})\.(?<state>lock|free)$/.exec(name)?.groups ?? {};
    return number === undefined ? [] : [{ name, number: Number(number), held: state === 'lock' }];
  });
}

function newest(folder: string): Entry | undefined {
  return entries(folder).reduce<Entry | undefined>(
    (best, entry) => (best === undefined || entry.number > best.number ? entry : best),
    undefined,
  );
}

/** undefined: the file is incomplete or of an unknown format. */
function readHolder(path: string): Holder | undefined {
  try {
    const { machine, pid, started } = JSON.parse(readFileSync(path, 'utf8')) as Partial<Holder>;
    if (typeof machine !== 'string' || typeof pid !== 'number' || typeof started !== 'string') return undefined;
    return { machine, pid, started };
  } catch {
    return undefined;
  }
}

function describeHolder(holder: Holder | undefined): string {
  if (holder === undefined) return 'another process';
  return holder.machine === machine() ? `process ${holder.pid}` : `process ${holder.pid} on another machine`;
}

function isDead(holder: Holder | undefined): boolean {
  if (holder === undefined || holder.machine !== machine()) return false;
  try {
    process.kill(holder.pid, 0);
  } catch (error) {
    return error instanceof Error && 'code' in error && error.code === 'ESRCH';
  }
  return startOf(holder.pid) !== holder.started;
}

function thisProcess(): Holder {
  return { machine: machine(), pid: process.pid, started: startOf(process.pid) };
}

function machine(): string {
  return [hostname(), readOr('/proc/sys/kernel/random/boot_id'), linkOr('/proc/self/ns/pid')].join(' ');
}

/** Start time: field 22 of Linux's stat, ticks since boot. Elsewhere the same constant for all. */
function startOf(pid: number): string {
  const stat = readOr(`/proc/${pid}/stat`);
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  // Field 3, the state. A killed process keeps its id until its parent reaps it: in a container, perhaps never.
  return fields[0] === 'Z' ? 'ended' : (fields[19] ?? '');
}

function readOr(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return '';
  }
}

function linkOr(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}

function touch(path: string): void {
  try {
    const now = new Date();
    utimesSync(path, now, now);
  } catch {
    // This machine slept and another process took the lock. Both write the same bytes at the same offsets.
  }
}

/** Detects a holder without heartbeats by this process's own clock, because clocks of two machines differ. */
class HeartbeatMonitor {
  readonly #nowMs: () => number;
  #seen = '';
  #sinceMs = 0;

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  isSilent(path: string, holder: Holder | undefined): boolean {
    if (holder?.machine === machine()) return false;
    const stat = statSync(path, { throwIfNoEntry: false });
    const seen = `${path} ${stat?.mtimeMs}`;
    const nowMs = this.#nowMs();
    if (seen !== this.#seen) this.#sinceMs = nowMs;
    this.#seen = seen;
    return nowMs - this.#sinceMs > heartbeatTimeoutMs;
  }
}
