// Requests with grammars at an instance: they wait for the compilation, require masks, and fail with a reason.
import { describe, expect, test } from 'vitest';
import type { InstanceEffect } from '../../../src/core/protocol/effects.ts';
import type { Grammar } from '../../../src/core/protocol/grammar.ts';
import { rowFailures } from '../../../src/util/step.ts';
import { promptOf, request, World } from '../instance-world.ts';

const grammar: Grammar = { kind: 'regex', text: 'a+' };

function grammarWorld(config: ConstructorParameters<typeof World>[0] = {}) {
  const effects: string[] = [];
  const world = new World(config, (effect: InstanceEffect) => {
    if (effect.kind === 'compileGrammar') effects.push(`compile ${effect.id} ${effect.grammar.text}`);
    else if (effect.kind === 'releaseGrammar') effects.push(`release ${effect.id}`);
  });
  const compiled = (id: string, fault?: string) => world.deliver({ kind: 'grammarCompiled', id, fault });
  return { world, effects, compiled };
}

describe('a request with a grammar', () => {
  test('starts once its grammar is compiled, while others run', () => {
    const { world, effects, compiled } = grammarWorld();
    world.submit(request('a', promptOf(1, 40), { grammar }));
    expect(world.running).toBeUndefined();
    world.submit(request('b', promptOf(2, 40)));
    expect(world.running?.plan.rowStart).toHaveLength(2);
    compiled('a');
    world.finishAll();
    expect(effects).toEqual(['compile a a+', 'release a']);
    expect(world.of('a').tokens).toHaveLength(4);
    expect(world.lastOf('b')).toEqual({ kind: 'finished', reason: 'length' });
    compiled('a');
    expect(world.ignored).toEqual(['Ignored grammarCompiled: request a waits for no grammar']);
  });

  test('has a row in each step that samples for it, with its output so far', () => {
    const { world, compiled } = grammarWorld();
    world.submit(request('a', promptOf(1, 300), { grammar }), request('b', promptOf(2, 40)));
    compiled('a');
    const outputs: number[][] = [];
    while (world.running !== undefined) {
      const { grammarRows = [], logitRows, rowStart } = world.running.plan;
      for (const { row, sequence, request: id, output } of grammarRows) {
        expect(id).toBe('a');
        expect(logitRows[row]).toBe((rowStart[sequence + 1] ?? 0) - 1);
        outputs.push([...output]);
      }
      world.finishStep();
    }
    const { tokens } = world.of('a');
    expect(outputs).toEqual([0, 1, 2, 3].map((length) => tokens.slice(0, length)));
  });

  test('repeats a step in which its mask was not ready; the others go on', () => {
    const { world, compiled } = grammarWorld();
    world.submit(request('a', promptOf(1, 40), { grammar }), request('b', promptOf(2, 40)));
    compiled('a');
    for (let step = 0; step < 3 && world.running !== undefined; step++) {
      const { running } = world;
      const [row] = running.plan.grammarRows ?? [];
      world.running = undefined;
      const unmaskedSequences = Int32Array.of(row?.sequence ?? 99);
      const result = { ...world.engine.run(running.plan), unmaskedSequences };
      world.deliver({ kind: 'stepDone', step: running.step, result });
    }
    expect(world.received.get('a')?.tokens).toEqual([]);
    expect(world.of('b').tokens.length).toBeGreaterThan(0);
    world.finishAll();
    const alone = grammarWorld();
    alone.world.submit(request('a', promptOf(1, 40)));
    alone.world.finishAll();
    expect(world.of('a').tokens).toEqual(alone.world.of('a').tokens);
  });

  test('fails where its grammar cannot be compiled, or allows no token', () => {
    const { world, effects, compiled } = grammarWorld();
    world.submit(request('a', promptOf(1, 40), { grammar }), request('b', promptOf(2, 40), { grammar }));
    compiled('a', 'it takes longer than 1 s to compile');
    expect(world.lastOf('a')).toMatchObject({
      code: 'GRAMMAR_FAILED',
      message: 'Cannot generate: the grammar cannot be compiled: it takes longer than 1 s to compile',
    });
    compiled('b');
    world.finishStep();
    const { running } = world;
    if (running === undefined) throw new Error('No step was planned');
    world.running = undefined;
    const result = world.engine.run(running.plan);
    result.failed[0] = rowFailures.noToken;
    world.deliver({ kind: 'stepDone', step: running.step, result });
    expect(world.lastOf('b')).toMatchObject({
      code: 'GRAMMAR_FAILED',
      message:
        'Cannot generate: the grammar of the request allows no token of the vocabulary: after 1 tokens of output',
    });
    expect(effects).toEqual(['compile a a+', 'compile b a+', 'release a', 'release b']);
  });

  test('frees its grammar when it is cancelled, before and after its start', () => {
    const { world, effects, compiled } = grammarWorld();
    world.submit(request('a', promptOf(1, 40), { grammar }), request('b', promptOf(2, 40), { grammar }));
    world.cancel('a');
    compiled('b');
    world.finishStep();
    world.cancel('b');
    if (world.running !== undefined) world.finishStep();
    expect(effects.slice(2)).toEqual(['release a', 'release b']);
    expect(world.instance.snapshot().pages.used).toBe(0);
  });

  test('continues with the output of an earlier attempt', () => {
    const { world, effects, compiled } = grammarWorld();
    const resumed = { tokens: Int32Array.of(7, 8), scored: 0 };
    world.submit(request('a', promptOf(1, 40), { grammar, resumed }));
    compiled('a');
    expect([...(world.running?.plan.grammarRows?.[0]?.output ?? [])]).toEqual([7, 8]);
    world.finishAll();
    expect(effects).toEqual(['compile a a+', 'release a']);
  });

  test('waits for the compilation where it decodes, and continues from the token of its prefill instance', () => {
    const handOff = { layerWise: true, receiveTokens: 400, receivePages: 40, rechecksAdmission: false };
    const { world, effects, compiled } = grammarWorld({ handOff });
    const received = request('a', promptOf(1, 40), { grammar });
    world.deliver({ kind: 'peer', from: 1, message: { kind: 'reserve', id: 'a', request: received } });
    const firstEvents = [
      { kind: 'started', cachedTokens: 0 },
      { kind: 'tokens', tokens: Int32Array.of(7), logprobs: undefined },
    ] as const;
    world.deliver({ kind: 'promptReceived', from: 1, id: 'a', firstEvents });
    expect(effects).toEqual(['compile a a+']);
    expect(world.running).toBeUndefined();
    compiled('a');
    expect([...(world.running?.plan.grammarRows?.[0]?.output ?? [])]).toEqual([7]);
    expect(world.of('a').tokens).toEqual([7]);
  });
});
