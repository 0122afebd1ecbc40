// Reports the memory after a garbage collection to a parent process, in a process with `--expose-gc`.
import type { ServerMemory } from '../../../bench/soak/settle.ts';
import { loadNative } from '../../../kernel/native/native.ts';
import { collectEverywhere } from '../../../runtime/threads/garbage-collection.ts';

export const memoryRequest = 'kvasir: memory';

/** @param workers threads of instances; the tokenizer thread exists only after a long text */
export function answerMemoryRequests(workers: number): void {
  if (process.send === undefined || globalThis.gc === undefined) return;
  process.on('message', (message) => {
    if (message !== memoryRequest) return;
    void collectEverywhere(workers).then((heapBytes) => {
      loadNative()?.trimHeap();
      const memory: ServerMemory = { residentBytes: process.memoryUsage.rss(), heapBytes };
      process.send?.(memory);
    });
  });
  // The channel to the parent must not keep this process alive.
  process.channel?.unref();
}
