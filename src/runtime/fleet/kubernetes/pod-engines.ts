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
  /** Calls the listener when an engine of the URL may be added again. */
  onFreed(listener: (url: string) => void): void;
}

export class PodEngines {
  readonly #options: PodEnginesOptions;
  readonly #fleet: EngineFleet;
  /** By the uid of a pod that has not been deleted: its engine, after those that drain. */
  readonly #engines = new Map<string, readonly ExternalEngine[]>();
  /** By uid: pods whose URL another engine of the fleet has. */
  readonly #waiting = new Map<string, EnginePod>();
  readonly #watcher: PodWatcher;

  constructor(options: PodEnginesOptions, fleet: EngineFleet, log: (message: string) => void, times?: PodWatcherTimes) {
    this.#options = options;
    this.#fleet = fleet;
    const listener = { onPod: (effect: PodEffect<EnginePod>) => this.#onPod(effect), log };
    fleet.onFreed((url) => {
      for (const pod of [...this.#waiting.values()]) if (this.#urlOf(pod) === url) this.#join(pod);
    });
    this.#watcher = new PodWatcher(options, listener, times);
  }

  /** The first list of pods has been taken or has failed, and its engines have answered, or failed to, once. */
  async settled(): Promise<void> {
    await this.#watcher.settled;
    await Promise.all([...this.#engines.values()].flat().map(({ settled }) => settled));
  }

  close(): void {
    this.#waiting.clear();
    this.#watcher.close();
  }

  #onPod(effect: PodEffect<EnginePod>): void {
    const { uid } = effect.pod;
    if (effect.kind === 'join') {
      this.#join(effect.pod);
      return;
    }
    this.#waiting.delete(uid);
    for (const engine of this.#enginesOf(uid)) this.#fleet.removeEngine(engine, effect.isGone);
    if (effect.isGone) this.#engines.delete(uid);
  }

  /** A pod whose URL is taken waits until it is free. */
  #join(pod: EnginePod): void {
    const { uid, kvEvents, role } = pod;
    const joined = this.#fleet.addEngine({ kvEvents, role, ...this.#options.engine, url: this.#urlOf(pod) });
    if (joined === undefined) {
      this.#waiting.set(uid, pod);
      return;
    }
    this.#waiting.delete(uid);
    this.#engines.set(uid, [...this.#enginesOf(uid), joined]);
  }

  #enginesOf(uid: string): readonly ExternalEngine[] {
    return (this.#engines.get(uid) ?? []).filter(({ isClosed }) => !isClosed);
  }

  #urlOf({ address }: EnginePod): string {
    return `${this.#options.scheme}://${address}`;
  }
}
