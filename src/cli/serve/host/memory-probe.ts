// Lets a parent process that started this one with `--expose-gc` ask what memory is left after a collection: there is no HTTP route for it.
import type { ServerMemory } from '../../../bench/soak/settle.ts';
import { loadNative } from '../../../kernel/native/native.ts';
import { collectEverywhere } from '../../../runtime/threads/collection.ts';

export const memoryQuestion = 'kvasir: memory';

/** @param workers threads of instances; the tokenizer's lives only where long texts come */
export function answerMemoryQuestions(workers: number): void {
  if (process.send === undefined || globalThis.gc === undefined) return;
  process.on('message', (message) => {
    if (message !== memoryQuestion) return;
    void collectEverywhere(workers).then((heapBytes) => {
      loadNative()?.trimHeap();
      const memory: ServerMemory = { residentBytes: process.memoryUsage.rss(), heapBytes };
      process.send?.(memory);
    });
  });
  // A parent that listens must not keep this process alive.
  process.channel?.unref();
}
