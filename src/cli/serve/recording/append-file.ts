// A file that lines are appended to beside other work: writes never block, memory is bounded, and a failure ends the file alone.
import { type FileHandle, open } from 'node:fs/promises';
import { UsageError } from '../../usage-error.ts';

/** Text that waits for the disk; further lines are dropped and counted. */
const waitingCharsMax = 16 * 2 ** 20;
/** Time for the last writes: a hung disk must not keep the server from ending. */
const closeMs = 5_000;

export interface AppendFileOptions {
  /** Called once, when a write has failed: the file ends there. */
  readonly onFailed: (error: NodeJS.ErrnoException) => void;
  /** Describes lines that were dropped since the last one. */
  readonly omittedLine: (count: number) => string;
}

export class AppendFile {
  readonly #file: Pick<FileHandle, 'appendFile' | 'close'>;
  readonly #options: AppendFileOptions;
  #lines: string[] = [];
  #waitingChars = 0;
  #omitted = 0;
  #writing: Promise<void> | undefined;
  #failed = false;

  /** @param file is closed with this one */
  constructor(file: Pick<FileHandle, 'appendFile' | 'close'>, options: AppendFileOptions) {
    this.#file = file;
    this.#options = options;
  }

  /** A new file that its owner alone may read. @throws UsageError if it exists or cannot be created */
  static async create(path: string, options: AppendFileOptions): Promise<AppendFile> {
    try {
      return new AppendFile(await open(path, 'ax', 0o600), options);
    } catch (error) {
      const { code = String(error) } = error as NodeJS.ErrnoException;
      const why = code === 'EEXIST' ? 'the file exists: name a new one' : `the file cannot be created (${code})`;
      throw new UsageError(`Cannot use --record ${path}: ${why}`);
    }
  }

  /** Appends a line, soon. */
  add(line: string): void {
    if (this.#failed) return;
    if (this.#waitingChars + line.length > waitingCharsMax) {
      this.#omitted++;
      return;
    }
    this.#pushOmitted();
    this.#push(line);
    this.#writing ??= this.#write();
  }

  #push(line: string): void {
    const text = `${line}\n`;
    this.#lines.push(text);
    this.#waitingChars += text.length;
  }

  #pushOmitted(): void {
    if (this.#omitted > 0) this.#push(this.#options.omittedLine(this.#omitted));
    this.#omitted = 0;
  }

  /** Resolves when all lines are written or the file has failed. False: a write hangs, and keeps the process alive. */
  async close(timeoutMs = closeMs): Promise<boolean> {
    if (!this.#failed) this.#pushOmitted();
    const closed = (this.#writing ?? this.#write()).then(() => this.#file.close().catch(() => {}));
    const inTime = await endsWithin(closed, timeoutMs);
    if (!inTime && !this.#failed) {
      this.#failed = true;
      this.#options.onFailed(Object.assign(new Error('a write hangs'), { code: 'ETIMEDOUT' }));
    }
    return inTime;
  }

  /** Writes whole lines; those added meanwhile go with the next write. */
  async #write(): Promise<void> {
    // Lines of one turn of the event loop take one write.
    await new Promise(setImmediate);
    while (this.#lines.length > 0 && !this.#failed) {
      const text = this.#lines.join('');
      this.#lines = [];
      try {
        await this.#file.appendFile(text);
        this.#waitingChars -= text.length;
      } catch (error) {
        // It hung until the file was closed, which was reported.
        if (this.#failed) break;
        this.#failed = true;
        this.#options.onFailed(error as NodeJS.ErrnoException);
      }
    }
    this.#lines = this.#failed ? [] : this.#lines;
    this.#writing = undefined;
  }
}

async function endsWithin(done: Promise<void>, timeoutMs: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), timeoutMs);
  });
  const inTime = await Promise.race([done.then(() => true), timeout]);
  clearTimeout(timer);
  return inTime;
}
