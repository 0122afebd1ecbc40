// What every kind of instance owes the conductor: submit, stream, cancel, report, KV events, and a retry when it is lost.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PublishedBlocks } from '../../src/core/fleet/published-blocks.ts';
import type { GenerationEvent } from '../../src/core/protocol/ports.ts';
import type { ConductorDriver } from '../../src/runtime/threads/conductor-driver.ts';
import { liveRequest } from '../runtime/threads/instances.ts';

/** Two equal instances behind a conductor. */
export interface InstancesWorld {
  readonly port: ConductorDriver;
  /** Blocks of 32 tokens in the prefix caches, as the instances themselves count them. */
  ownBlocks(): number;
  /** Requests with this id stop after some tokens. Loses the instance that runs it; undefined: it is lost by itself. */
  readonly doomed: string;
  lose(): Promise<void> | undefined;
  close(): Promise<unknown>;
}

export async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

/** @param open `blocks` receives the blocks of the instances */
export function describeInstances(name: string, open: (blocks: PublishedBlocks) => Promise<InstancesWorld>): void {
  describe(name, () => {
    const blocks = new PublishedBlocks(() => {});
    let world: InstancesWorld;
    beforeAll(async () => {
      world = await open(blocks);
      await until(() => world.port.instances().filter(({ ready }) => ready).length === 2);
    });
    afterAll(() => world.close());

    const publishedBlocks = (): number => {
      blocks.take();
      return blocks.size;
    };
    const promptOf = (kind: number, length: number) =>
      Array.from({ length }, (_, i) => 3 + ((kind * 97 + i * 7) % 500));
    const run = (id: string, prompt: readonly number[], maxTokens: number, onTokens?: (count: number) => void) =>
      new Promise<{ kinds: string[]; tokens: number[]; cached: number; end: GenerationEvent }>((resolve) => {
        const [kinds, tokens]: [string[], number[]] = [[], []];
        let cached = 0;
        world.port.submit(liveRequest(id, prompt, maxTokens), (event) => {
          if (kinds.at(-1) !== event.kind) kinds.push(event.kind);
          if (event.kind === 'started') cached = event.cachedTokens;
          if (event.kind === 'tokens') {
            tokens.push(...event.tokens);
            onTokens?.(tokens.length);
          }
          if (event.kind === 'finished' || event.kind === 'failed') resolve({ kinds, tokens, cached, end: event });
        });
      });

    it('streams its tokens between the start and the end', async () => {
      const prompt = promptOf(1, 100);
      const first = await run('a', prompt, 8);
      expect(first.kinds).toEqual(['accepted', 'started', 'tokens', 'finished']);
      expect([first.tokens.length, first.cached, first.end]).toEqual([8, 0, { kind: 'finished', reason: 'length' }]);
      // KV events may follow the answer.
      await until(() => publishedBlocks() === 3);
    });

    it('reports every block that it stores, and no other', async () => {
      await Promise.all([4, 5, 6].map((kind) => run(`d${kind}`, promptOf(kind, 90), 40)));
      await until(() => publishedBlocks() > 12 && publishedBlocks() === world.ownBlocks());
    });

    it('reuses the blocks of a prompt that it has computed', async () => {
      const instanceOf = (id: string) => world.port.requestTrace(id)?.placements[0].instance;
      const [first, again] = [await run('b', promptOf(8, 100), 8), await run('b again', promptOf(8, 100), 8)];
      expect(again.tokens).toEqual(first.tokens);
      // Placement may prefer the other one, on a busy machine.
      if (instanceOf('b') === instanceOf('b again')) expect([first.cached, again.cached]).toEqual([0, 96]);
    });

    it('releases a cancelled request', async () => {
      const before = await new Promise<number>((resolve) => void run('cancelled', promptOf(2, 40), 400, resolve));
      expect(before).toBeGreaterThan(0);
      world.port.cancel('cancelled');
      await until(() => world.port.instances().every(({ running }) => running === 0));
      expect(Object.values(world.port.inFlight).every((count) => count === 0)).toBe(true);
    });

    it('reports its requests, and the tokens that it has computed', async () => {
      const sum = (read: (each: ReturnType<ConductorDriver['instances']>[number]) => number) =>
        world.port.instances().reduce((total, each) => total + read(each), 0);
      await run('c', promptOf(3, 70), 5);
      // With the requests of the tests before.
      await until(() => sum((each) => each.promptTokens) === 100 + 3 * 90 + 2 * 100 + 40 + 70);
      await until(() => sum((each) => each.generatedTokens) >= 8 + 3 * 40 + 2 * 8 + 5);
    });

    it('loses an instance in mid-stream: the request continues after the tokens that the client has', async () => {
      const prompt = promptOf(7, 40);
      const { tokens } = await run('undisturbed', prompt, 30);
      let lost: Promise<void> | undefined;
      const disturbed = await run(world.doomed, prompt, 30, (count) => {
        if (count >= 3) lost ??= world.lose();
      });
      await lost;
      expect([disturbed.tokens, disturbed.end.kind]).toEqual([tokens, 'finished']);
      expect(world.port.requestTrace(world.doomed)?.placements.length).toBe(2);
    });
  });
}
