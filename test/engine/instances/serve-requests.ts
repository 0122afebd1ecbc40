// An instance over a real engine that runs requests to their end, one step after another.
import { createTokenInstance, type TokenInstanceConfig } from '../../../src/core/instance/token-instance.ts';
import type { GenerationRequest } from '../../../src/core/protocol/ports.ts';
import type { Engine } from '../../../src/engine/engine.ts';
import type { LiveTiers } from '../../../src/runtime/threads/live-tiers.ts';
import { baseConfig, limits } from '../../core/instance-world.ts';

/** Most rows of a step. */
export const tokensMax = 128;

interface Generated {
  readonly tokens: number[];
  readonly logprobs: number[];
  cachedTokens: number;
  embedding?: readonly number[];
}

/**
 * Runs all requests to their end, and checks every invariant after every step. @param late submitted after 20 steps
 * @param tiers of an instance with host memory
 */
export function serve(
  engine: Pick<Engine, 'run' | 'pages' | 'model'>,
  requests: readonly GenerationRequest[],
  config: Partial<TokenInstanceConfig> = {},
  late: readonly GenerationRequest[] = [],
  tiers?: LiveTiers,
) {
  const machine = createTokenInstance({
    ...baseConfig,
    pages: engine.pages,
    groups: engine.model.kv.groups,
    limits: { ...limits, tokensMax, logitRowsMax: 32, sequencesMax: 6 },
    ...config,
  });
  const heard = new Map<string, Generated>(
    [...requests, ...late].map(({ id }) => [id, { tokens: [], logprobs: [], cachedTokens: 0 }]),
  );
  const abort = new Int32Array(1);
  let nowUs = 0;
  let usedPagesMax = 0;
  let effects = requests.flatMap((one) => machine.step(nowUs, { kind: 'submit', request: one }));
  for (let steps = 0; ; steps++) {
    machine.check();
    usedPagesMax = Math.max(usedPagesMax, machine.snapshot().pages.used);
    for (const effect of effects) {
      if (effect.kind === 'copyPages' || effect.kind === 'loadPages' || effect.kind === 'storePages')
        tiers?.carryOut(effect);
      if (effect.kind !== 'emit') continue;
      const to = heard.get(effect.id) as Generated;
      if (effect.event.kind === 'failed') throw new Error(effect.event.message);
      if (effect.event.kind === 'started') to.cachedTokens = effect.event.cachedTokens;
      if (effect.event.kind === 'embedding') to.embedding = [...effect.event.values];
      if (effect.event.kind !== 'tokens') continue;
      to.tokens.push(...effect.event.tokens);
      to.logprobs.push(...(effect.event.logprobs?.logprobs ?? []));
    }
    const run = effects.find((effect) => effect.kind === 'runStep');
    if (run === undefined) return { heard, usedPagesMax, snapshot: machine.snapshot() };
    tiers?.stepBegins();
    const outcome = engine.run(run.plan, abort);
    tiers?.stepEnded();
    if (outcome.kind !== 'done') throw new Error('the step was aborted');
    nowUs += 1_000;
    effects = [...machine.step(nowUs, { kind: 'stepDone', step: run.step, result: outcome.result })];
    const arrived = steps === 20 ? late : [];
    effects.push(...arrived.flatMap((one) => machine.step(nowUs, { kind: 'submit', request: one })));
  }
}
