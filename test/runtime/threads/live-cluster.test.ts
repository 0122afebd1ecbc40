// Failures of an instance's thread: each is reported once and in order, and no call hangs.
import { describe, expect, it } from 'vitest';
import type { GenerationEvent } from '../../../src/core/protocol/ports.ts';
import { MemoryHub } from '../../../src/runtime/bus/memory-hub.ts';
import { InstanceThread } from '../../../src/runtime/threads/instance-thread.ts';
import { LiveCluster } from '../../../src/runtime/threads/live-cluster.ts';
import { publishTo, subscribeTo } from '../../../src/runtime/threads/thread-bus.ts';
import { request } from '../../core/instance-world.ts';
import { admitAll } from './instances.ts';

const failingWorker = new URL('./failing-worker.mjs', import.meta.url);

function start(failure: string): LiveCluster {
  const instances = [{ role: 'mixed', settings: { failure } }] as const;
  return new LiveCluster({ entry: failingWorker, instances, queueMax: 4, admission: admitAll, log: () => {} });
}

describe('InstanceThread', () => {
  it('receives outputs of its own incarnation only, and its end after them', async () => {
    const hub = new MemoryHub();
    const [bus, other] = [hub.connect(), hub.connect()];
    const gone: (readonly string[])[] = [];
    subscribeTo(other, 'gone', ['*', '*'], (_, name) => gone.push(name));
    const logged: string[] = [];
    const data = {
      ...({ settings: { failure: 'late exit' }, address: '3', role: 'mixed', incarnation: 2, peers: 'none' } as const),
      ...{ receivesPrompts: false, pages: undefined, traces: false, hashKey: new Uint32Array(4), loaded: undefined },
    };
    const log = (line: string): void => void logged.push(line);
    const thread = new InstanceThread({ entry: failingWorker, hub, bus, data, log, onOutputs: () => {} });
    await thread.ready;
    for (const incarnation of [1, 2, 3])
      publishTo(other, 'output', ['3', incarnation], { kind: 'log', message: `of incarnation ${incarnation}` });
    await other.flush();
    expect([logged, gone]).toEqual([['of incarnation 2'], []]);
    thread.send({ kind: 'requestSnapshot' });
    await thread.ended;
    await other.flush();
    expect(gone).toEqual([['3', '2']]);
    await Promise.all([bus.close(), other.close()]);
  });
});

describe('LiveCluster', () => {
  it('reports in one line why it cannot start', async () => {
    const instance = start('startFailed');
    await expect(instance.ready()).rejects.toThrow('Cannot read model: no such file');
    await instance.close();
  });

  it('fails to start if its thread ends before it is ready', async () => {
    await expect(start('early exit').ready()).rejects.toThrow('its thread ended with code 3');
  });

  it('refuses while the model loads', async () => {
    const instance = start('late exit');
    const early: GenerationEvent[] = [];
    instance.submit(request('early', [1, 2, 3]), (event) => early.push(event));
    expect(early).toMatchObject([{ kind: 'failed', code: 'NOT_READY' }]);
    await instance.ready();
    await instance.close();
  });

  it('fails running requests when its thread dies, refuses later ones, and drains', async () => {
    const instance = start('late exit');
    await instance.ready();
    const events: GenerationEvent[] = [];
    const failed = new Promise<void>((resolve) => {
      instance.submit(request('a', [1, 2, 3]), (event) => {
        events.push(event);
        if (event.kind === 'failed') resolve();
      });
    });
    await failed;
    expect(events.map(({ kind }) => kind)).toEqual(['accepted', 'failed']);
    expect(instance.snapshot().ready).toBe(false);
    const later: GenerationEvent[] = [];
    instance.submit(request('b', [1, 2, 3]), (event) => later.push(event));
    expect(later.map(({ kind }) => kind)).toEqual(['failed']);
    await instance.drain();
    await instance.close();
  });

  it('is not ready while it drains', async () => {
    const instance = start('late exit');
    await instance.ready();
    expect(instance.snapshot().ready).toBe(true);
    await instance.drain();
    expect(instance.snapshot().ready).toBe(false);
    await instance.close();
  });

  it('delivers events to other sinks when one throws', async () => {
    const instance = start('late exit');
    await instance.ready();
    instance.submit(request('bad', [1, 2, 3]), () => {
      throw new Error('The sink failed');
    });
    const failed = new Promise<void>((resolve) => {
      instance.submit(request('good', [1, 2, 3]), ({ kind }) => {
        if (kind === 'failed') resolve();
      });
    });
    await failed;
    await instance.close();
  });
});
