// When records may have been lost while processes go on: the connection is back, or somebody misses one.
import type { Bus } from './bus/bus.ts';

const missing = 'missing';
/** Between two tries, while the server cannot be asked. */
const retryMs = 250;

/** Those who are there look after the records that they rely on. */
export function sayMissing(bus: Bus): void {
  bus.publish(missing, new Uint8Array());
}

export interface Upholding {
  /** Checks now, too. */
  check(): void;
  stop(): void;
}

/** Calls `check` whenever records may have been lost, one call at a time, and again where it fails. Ends with the bus. */
export function whenDoubtful(bus: Bus, check: () => Promise<void>): Upholding {
  let up = true;
  let wanted = false;
  let running = false;
  let stopped = false;
  const run = async (): Promise<void> => {
    wanted = true;
    if (running) return;
    running = true;
    while (wanted && up && !stopped) {
      wanted = false;
      await check().catch(async () => {
        wanted = true;
        await new Promise((resolve) => setTimeout(resolve, retryMs).unref());
      });
    }
    running = false;
  };
  const stops = [
    bus.subscribe(missing, () => void run()),
    bus.watch((isUp) => {
      const back = isUp && !up;
      up = isUp;
      if (back) void run();
    }),
  ];
  return {
    check: () => void run(),
    stop: () => {
      stopped = true;
      for (const stop of stops) stop();
    },
  };
}
