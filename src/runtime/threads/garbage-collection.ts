// Forces garbage collection in every thread of a process started with `--expose-gc`, so that the soak bench measures live memory.
import { BroadcastChannel } from 'node:worker_threads';

const channelName = 'kvasir-collection';
/** A thread collects at the end of its step. */
const responseMsMax = 2000;

/** Makes a worker thread collect on request; does nothing without `--expose-gc`. */
export function collectOnRequest(): void {
  const collect = globalThis.gc;
  if (collect === undefined) return;
  const channel = new BroadcastChannel(channelName);
  channel.onmessage = ({ data }) => {
    if (data !== 'collect') return;
    collect();
    channel.postMessage(process.memoryUsage().heapUsed);
  };
  channel.unref();
}

/** Collects in this thread and the workers. @returns used bytes of all heaps */
export async function collectEverywhere(workers: number): Promise<number> {
  const channel = new BroadcastChannel(channelName);
  const heaps: number[] = [];
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, responseMsMax);
    channel.onmessage = ({ data }) => {
      if (typeof data === 'number') heaps.push(data);
      if (heaps.length < workers) return;
      clearTimeout(timer);
      resolve();
    };
    channel.postMessage('collect');
  });
  channel.close();
  globalThis.gc?.();
  return heaps.reduce((sum, bytes) => sum + bytes, process.memoryUsage().heapUsed);
}
