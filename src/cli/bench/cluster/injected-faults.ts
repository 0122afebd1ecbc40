// Faults inside processes that a bench starts, by a library that is preloaded into them (`native/bench/faults.c`).
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageFile } from '../../package-root.ts';
import { type TemporaryFolder, temporaryFolder } from '../../serve/exit-cleanup.ts';
import { UsageError } from '../../usage-error.ts';

export class InjectedFaults {
  readonly #folder: TemporaryFolder = temporaryFolder('faults');
  readonly #library: string;

  /** Compiles the library. @throws UsageError without a C compiler, and on other systems than Linux */
  constructor() {
    this.#library = join(this.#folder.path, 'faults.so');
    const flags = ['-shared', '-fPIC', '-O1', '-o', this.#library, packageFile('native/bench/faults.c')];
    const { error, status, stderr } = spawnSync('cc', [...flags, '-ldl', '-lpthread'], { encoding: 'utf8' });
    const why = process.platform === 'linux' ? (error?.message ?? stderr.split('\n')[0]) : 'it needs Linux';
    if (status === 0 && process.platform === 'linux') return;
    this.#folder.remove();
    throw new UsageError(`Cannot inject --faults hang and disk: ${why}`);
  }

  /** Of processes that can have these faults. */
  get env(): Readonly<Record<string, string>> {
    const { path } = this.#folder;
    return { LD_PRELOAD: this.#library, KVASIR_FAULTS: path, KVASIR_FAULTS_DISK: join(path, 'disk') };
  }

  /** A folder whose files are on the disk that `stallDisk` stalls. */
  diskFolder(name: string): string {
    const path = join(this.#folder.path, 'disk', name);
    mkdirSync(path, { recursive: true });
    return path;
  }

  /** Stops the thread of the process that computes, while it runs and for good. */
  hang(pid: number): void {
    // The first thread serves the connections of the process; of the others, the one that computes has used most time.
    const others = threadTicks(pid).filter(([thread]) => thread !== pid);
    const [busiest] = others.sort(([, a], [, b]) => b - a);
    if (busiest !== undefined) this.#inject(pid, 'hang', busiest[0]);
  }

  /** Reads and writes of the process on the disk return after this time. */
  stallDisk(pid: number, ms: number): void {
    this.#inject(pid, 'disk', ms);
  }

  remove(): void {
    this.#folder.remove();
  }

  /** The file appears with its content. */
  #inject(pid: number, fault: 'hang' | 'disk', value: number): void {
    const path = join(this.#folder.path, `${pid}.${fault}`);
    writeFileSync(`${path}.part`, `${value}\n`);
    renameSync(`${path}.part`, path);
  }
}

/** Processor time of each thread, in ticks; empty for a process that has ended. */
function threadTicks(pid: number): (readonly [thread: number, ticks: number])[] {
  const folder = `/proc/${pid}/task`;
  try {
    return readdirSync(folder).map((thread) => {
      const stat = readFileSync(join(folder, thread, 'stat'), 'utf8');
      // The name of the thread, in brackets, may contain spaces.
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      return [Number(thread), Number(fields[11]) + Number(fields[12])] as const;
    });
  } catch {
    return [];
  }
}
