// The ready pods of a label selector as engines of a fleet.
import type { PodEffect } from '../../../core/fleet/pod-set.ts';
import type { ExternalEngine, ExternalEngineOptions } from '../external-engine.ts';
import type { EnginePod } from './engine-pod.ts';
import { type PodSelector, PodWatcher, type PodWatcherTimes } from './pod-watcher.ts';

export interface PodEnginesOptions extends PodSelector {
  /** Of the engines' URLs. */
  readonly scheme: 'http' | 'https';
  /** Of all engines, in place of what pods and engines state. */
  readonly engine: Omit<ExternalEngineOptions, 'url'>;
}

/** Where engines join and leave. */
export interface EngineFleet {
  addEngine(options: ExternalEngineOptions): ExternalEngine | undefined;
  removeEngine(engine: ExternalEngine, isGone: boolean): void;
}

export class PodEngines {
  readonly #options: PodEnginesOptions;
  readonly #fleet: EngineFleet;
  /** By the uid of a pod that has not been deleted: its engine, after those that drain. */
  readonly #engines = new Map<string, ExternalEngine[]>();
  readonly #watcher: PodWatcher;

  constructor(options: PodEnginesOptions, fleet: EngineFleet, log: (message: string) => void, times?: PodWatcherTimes) {
    this.#options = options;
    this.#fleet = fleet;
    const listener = { onPod: (effect: PodEffect<EnginePod>) => this.#onPod(effect), log };
    this.#watcher = new PodWatcher(options, listener, times);
  }

  /** The first list of pods has been taken or has failed, and its engines have answered, or failed to, once. */
  async settled(): Promise<void> {
    await this.#watcher.settled;
    await Promise.all([...this.#engines.values()].flat().map(({ settled }) => settled));
  }

  close(): void {
    this.#watcher.close();
  }

  #onPod(effect: PodEffect<EnginePod>): void {
    const { uid, address, kvEvents, role } = effect.pod;
    const engines = (this.#engines.get(uid) ?? []).filter(({ isClosed }) => !isClosed);
    if (effect.kind === 'join') {
      const { scheme, engine } = this.#options;
      const joined = this.#fleet.addEngine({ kvEvents, role, ...engine, url: `${scheme}://${address}` });
      if (joined !== undefined) this.#engines.set(uid, [...engines, joined]);
      return;
    }
    for (const engine of engines) this.#fleet.removeEngine(engine, effect.isGone);
    if (effect.isGone) this.#engines.delete(uid);
  }
}
