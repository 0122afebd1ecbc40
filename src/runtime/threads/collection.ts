// Forcing collections in every thread of a process that was started with `--expose-gc`: how the soak bench tells leaks from litter.
import { BroadcastChannel } from 'node:worker_threads';

const channelName = 'kvasir-collection';
/** A thread in the middle of a step answers when it ends. */
const answerMsMax = 2000;

/** Makes a worker thread collect when it is asked to; does nothing in a process without `--expose-gc`. */
export function collectWhenAsked(): void {
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

/** Collects here and in the worker threads. @returns bytes used of all heaps */
export async function collectEverywhere(workers: number): Promise<number> {
  const channel = new BroadcastChannel(channelName);
  const heaps: number[] = [];
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, answerMsMax);
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
