// The choices of one request: all are submitted or none, and each ends once, for every fault of the port or the writer.
import { describe, expect, it } from 'vitest';
import type { GenerationEvent, GenerationRequest, InferencePort } from '../../../src/core/protocol/ports.ts';
import { GatewayMetrics } from '../../../src/gateway/metrics/metrics.ts';
import { ChoiceOutput } from '../../../src/gateway/openai/choice-output.ts';
import { type Choice, type ChoiceHandler, RunningChoices } from '../../../src/gateway/openai/run-choices.ts';
import { request } from '../../core/instance-world.ts';
import { accepted, finished, ScriptedPort, tokens } from '../scripted-port.ts';
import { figuresOf, noCluster } from '../world.ts';
import { byteTokenizer } from './byte-tokenizer.ts';

/** A port driven by the test. */
class ManualPort implements InferencePort {
  readonly sinks = new Map<string, (event: GenerationEvent) => void>();
  readonly cancelled: string[] = [];
  readonly #answer: (index: number) => GenerationEvent;
  readonly #snapshots = new ScriptedPort(() => []);

  constructor(answer: (index: number) => GenerationEvent) {
    this.#answer = answer;
  }

  submit({ id }: GenerationRequest, sink: (event: GenerationEvent) => void): void {
    const answer = this.#answer(this.sinks.size);
    this.sinks.set(id, sink);
    sink(answer);
  }

  overload(): undefined {
    return undefined;
  }

  cancel(id: string): void {
    this.cancelled.push(id);
  }

  instances() {
    return this.#snapshots.instances();
  }

  readiness() {
    return this.#snapshots.readiness();
  }

  snapshot() {
    return this.#snapshots.snapshot();
  }

  drain(): Promise<void> {
    return Promise.resolve();
  }
}

const full: GenerationEvent = { kind: 'failed', code: 'KV_OVERLOADED', message: 'Cannot admit: full', retryAfterMs: 1 };

function choices(count: number): Choice[] {
  return Array.from({ length: count }, (_, index) => ({
    index,
    output: new ChoiceOutput(byteTokenizer, { stops: undefined, stopIds: new Set(), atStart: true }),
    request: request(`r-${index}`, [1]),
  }));
}

function run(port: InferencePort, count: number, handler: Partial<ChoiceHandler> = {}) {
  const calls: string[] = [];
  const metrics = new GatewayMetrics(port, noCluster, figuresOf(port).figures);
  const all: ChoiceHandler = {
    promptLogprobs: () => {},
    delta: ({ index }, { text }) => calls.push(`${index}:${text}`),
    finished: ({ index }, reason) => calls.push(`${index} ${reason}`),
    ...handler,
  };
  return {
    calls,
    metrics,
    start: () => new RunningChoices(port, choices(count), all, metrics.startRequest(performance.now())),
  };
}

async function cancelledCount(metrics: GatewayMetrics): Promise<string | undefined> {
  return /kvasir_requests_cancelled_total (\d+)/.exec((await metrics.render()).text)?.[1];
}

describe('RunningChoices', () => {
  it('cancels accepted choices when a later choice is refused, and counts no disconnect', async () => {
    const port = new ManualPort((index) => (index < 2 ? accepted : full));
    const { start, metrics, calls } = run(port, 4);
    expect(start).toThrow('Cannot admit: full');
    expect(port.cancelled).toEqual(['r-0', 'r-1']);
    expect(port.sinks.size).toBe(3);
    for (const sink of port.sinks.values()) sink(tokens([97]));
    expect(calls).toEqual([]);
    expect(await cancelledCount(metrics)).toBe('0');
  });

  it('cancels accepted choices when the port throws', () => {
    const port = new ManualPort((index) => {
      if (index === 1) throw new Error('broken');
      return accepted;
    });
    const { start } = run(port, 3);
    expect(start).toThrow('broken');
    expect(port.cancelled).toContain('r-0');
  });

  it('fails alone when its response cannot be written, without an exception in the port', async () => {
    const port = new ManualPort(() => accepted);
    const { start } = run(port, 2, {
      delta: () => {
        throw new Error('cannot write');
      },
    });
    const running = start();
    port.sinks.get('r-0')?.(tokens([97]));
    await expect(running.done).rejects.toThrow('cannot write');
    expect(port.cancelled).toEqual(['r-0', 'r-1']);
  });

  it('ends each choice once, and resolves with the last', async () => {
    const port = new ManualPort(() => accepted);
    const { start, calls, metrics } = run(port, 2);
    const running = start();
    for (const event of [tokens([97]), finished('length'), finished('stop'), tokens([98]), full])
      port.sinks.get('r-1')?.(event);
    expect(calls).toEqual(['1:a', '1:', '1 length']);
    port.sinks.get('r-0')?.(finished('stop'));
    await running.done;
    running.cancel();
    expect(port.cancelled).toEqual([]);
    expect(await cancelledCount(metrics)).toBe('0');
  });

  it('cancels all running choices once when the client disconnects', async () => {
    const port = new ManualPort(() => accepted);
    const { start, calls, metrics } = run(port, 3);
    const running = start();
    port.sinks.get('r-0')?.(finished('stop'));
    running.cancel();
    running.cancel();
    await expect(running.done).rejects.toMatchObject({ status: 499 });
    port.sinks.get('r-1')?.(tokens([97]));
    expect(port.cancelled).toEqual(['r-1', 'r-2']);
    expect(calls).toEqual(['0:', '0 stop']);
    expect(await cancelledCount(metrics)).toBe('1');
  });
});
