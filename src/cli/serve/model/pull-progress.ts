// Progress of a download: a bar on a terminal, and occasional lines elsewhere.

import { assertNever } from '../../../util/assert-never.ts';
import type { PullEvent } from '../../../weights/hub/pull.ts';

/** The used part of stderr. */
export interface ProgressOutput {
  readonly isTTY?: boolean;
  readonly columns?: number;
  write(text: string): unknown;
}

const barCells = 24;
const redrawMs = 100;
const lineMs = 15_000;
/** The rate covers this time. */
const rateMs = 10_000;

export class PullProgress {
  readonly #name: string;
  readonly #output: ProgressOutput;
  readonly #clock: () => number;
  #bytesTotal = 0;
  #bytes = 0;
  #startedMs = 0;
  #shownMs = 0;
  #drawn = false;
  #samples: { readonly ms: number; readonly bytes: number }[] = [];

  constructor(name: string, output: ProgressOutput, clock: () => number = () => performance.now()) {
    this.#name = name;
    this.#output = output;
    this.#clock = clock;
  }

  readonly show = (event: PullEvent): void => {
    switch (event.kind) {
      case 'cached-only':
        this.#line(`${event.why}: using ${this.#name} as it is cached`);
        break;
      case 'waiting':
        this.#line(`Waiting for ${event.holder}, which is downloading ${this.#name}`);
        break;
      case 'retrying':
        this.#line(`${event.path}: ${event.reason}; trying again in ${seconds(event.delayMs)}`);
        break;
      case 'started':
        this.#start(event.files, event.bytesTotal);
        break;
      case 'bytes':
        this.#move(event.bytes);
        break;
      case 'finished':
        this.#line(`Downloaded ${this.#name} in ${seconds(this.#clock() - this.#startedMs)}`);
        break;
      default:
        assertNever(event);
    }
  };

  #start(files: number, bytesTotal: number): void {
    this.#bytesTotal = bytesTotal;
    this.#startedMs = this.#clock();
    this.#shownMs = this.#startedMs;
    this.#line(`Downloading ${this.#name}: ${files === 1 ? '1 file' : `${files} files`}, ${size(bytesTotal)}`);
  }

  #move(bytes: number): void {
    const nowMs = this.#clock();
    this.#bytes = bytes;
    if (nowMs - (this.#samples.at(-1)?.ms ?? 0) >= redrawMs) this.#samples.push({ ms: nowMs, bytes });
    if (nowMs - this.#shownMs < (this.#output.isTTY === true ? redrawMs : lineMs)) return;
    this.#shownMs = nowMs;
    this.#samples = this.#samples.filter(({ ms }) => nowMs - ms <= rateMs);
    if (this.#output.isTTY === true) this.#draw(nowMs, this.#output.columns ?? 80);
    else this.#line(`  ${this.#state(nowMs)}`);
  }

  #draw(nowMs: number, columns: number): void {
    const filled = Math.round(barCells * this.#share());
    const bar = `${'█'.repeat(filled)}${'░'.repeat(barCells - filled)} ${this.#state(nowMs)}`;
    this.#output.write(`\r${bar.slice(0, columns - 1)}\x1b[K`);
    this.#drawn = true;
  }

  #share(): number {
    return this.#bytesTotal === 0 ? 1 : this.#bytes / this.#bytesTotal;
  }

  #state(nowMs: number): string {
    const done = `${size(this.#bytes)} of ${size(this.#bytesTotal)} (${Math.floor(100 * this.#share())} %)`;
    const first = this.#samples[0] ?? { ms: this.#startedMs, bytes: 0 };
    const rate = (this.#bytes - first.bytes) / (nowMs - first.ms);
    // The rate is unknown when no bytes have arrived, or when a file has restarted.
    if (!(rate > 0) || !Number.isFinite(rate)) return done;
    return `${done}, ${size(1000 * rate)}/s, ${seconds((this.#bytesTotal - this.#bytes) / rate)} left`;
  }

  #line(text: string): void {
    this.#output.write(`${this.#drawn ? '\r\x1b[K' : ''}${text}\n`);
    this.#drawn = false;
  }
}

function size(bytes: number): string {
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(0)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

function seconds(ms: number): string {
  const whole = Math.round(ms / 1000);
  if (whole < 60) return ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${whole} s`;
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}
