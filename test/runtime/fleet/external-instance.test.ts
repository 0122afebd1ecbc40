// One rank of an external engine: what counts as progress, and streams that stall.
import { expect, it } from 'vitest';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { EngineHttp } from '../../../src/runtime/fleet/engine-http.ts';
import { ExternalInstance } from '../../../src/runtime/fleet/external-instance.ts';
import { vllmDialect } from '../../../src/runtime/fleet/vllm-dialect.ts';
import { nowUs } from '../../../src/runtime/threads/alarm.ts';
import { request } from '../../core/instance-world.ts';
import { FakeEngine } from './fake-engine.ts';

const description = {
  models: ['fake'],
  contextTokens: undefined,
  capacityTokens: undefined,
  blockTokens: undefined,
  sources: [undefined],
  priorityOrder: 'smallest-first' as const,
  takesPriorities: false,
};
const root = { modelFingerprint: '', weightForm: '', inputForm: '', kvType: '', rope: '' };

it('counts prefills as progress, and releases streams that have started and stalled', async () => {
  const engine = await FakeEngine.start();
  const http = new EngineHttp(engine.url, undefined);
  const released: (readonly [string, string])[] = [];
  let onTokens = (): void => {};
  const listener = {
    onEvents: (events: readonly (readonly [string, GenerationEvent])[]) => {
      if (events.some(([, { kind }]) => kind === 'tokens')) onTokens();
    },
    onKvEvents: () => {},
    onBroken: () => {},
    onReleased: (id: string, why: string) => void released.push([id, why]),
    log: () => {},
  };
  const instance = new ExternalInstance({
    ...{ http, dialect: vllmDialect, description, model: 'fake', rank: 0, listener },
    blocks: { root, hashKey: Uint32Array.of(1, 2, 3, 4), incarnation: 1 },
  });
  engine.isHanging = true;
  instance.submit({ ...request('hanging', [1, 2]), maxTokens: 4 }, 0);
  const beforeUs = instance.stalledSinceUs ?? Number.POSITIVE_INFINITY;
  const fields = vllmDialect.handOff.prefill({ host: '', port: undefined, bootstrapRoom: 0 });
  const body = await new Promise<string | undefined>((resolve) =>
    instance.prefill(request('prefill', [1, 2, 3]), 0, fields, (answer) => resolve(answer?.body)),
  );
  expect(body).toContain('kv_transfer_params');
  expect(instance.stalledSinceUs).toBeGreaterThan(beforeUs);
  engine.isHanging = false;
  engine.stallAfter = 1;
  const started = new Promise<void>((resolve) => {
    onTokens = resolve;
  });
  instance.submit({ ...request('stalled', [4, 5]), maxTokens: 4 }, 0);
  await started;
  instance.releaseStalled(nowUs());
  expect(released).toEqual([]);
  instance.releaseStalled(nowUs() + 121e6);
  expect(released).toEqual([['stalled', 'no token has arrived for 120 s']]);
  instance.close();
  http.close();
  await engine.kill();
});
