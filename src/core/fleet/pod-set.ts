// The pods of a label selector, as the Kubernetes API lists and watches them: which of them join as engines, and leave.

/** A pod of one reading. */
export interface WatchedPod {
  /** Of the pod; another pod of its name has another one. */
  readonly uid: string;
  /** `resourceVersion` of the reading: of two readings of a pod the larger one is the later. */
  readonly version: string;
  /** Where its engine serves; undefined: it is not ready, is being deleted, or has no address. */
  readonly address: string | undefined;
}

export type PodChange<Pod> =
  | { readonly kind: 'stored'; readonly pod: Pod }
  /** The pod has been deleted, or has lost the labels of the selector. */
  | { readonly kind: 'deleted'; readonly pod: Pod }
  /** All changes up to this version have been sent. */
  | { readonly kind: 'bookmark'; readonly version: string };

export type PodEffect<Pod> =
  | { readonly kind: 'join'; readonly pod: Pod }
  /** `isGone`: its engine has ended; else it may finish what it has. */
  | { readonly kind: 'leave'; readonly pod: Pod; readonly isGone: boolean };

/** Deleted pods whose late events are ignored. */
const deletedMax = 1024;

/** Doubled events change nothing, and neither do events that are older than what is known of their pod. */
export class PodSet<Pod extends WatchedPod> {
  readonly #pods = new Map<string, Pod>();
  readonly #deleted = new Set<string>();
  #version: string | undefined;

  /** Changes are to be watched from this version on; undefined: the pods are to be listed first. */
  get version(): string | undefined {
    return this.#version;
  }

  /** All pods at a version. */
  listed(pods: readonly Pod[], version: string): readonly PodEffect<Pod>[] {
    this.#version = version;
    this.#deleted.clear();
    const uids = new Set(pods.map(({ uid }) => uid));
    const gone = [...this.#pods.values()].filter(({ uid }) => !uids.has(uid));
    return [...gone.flatMap((pod) => this.#remove(pod)), ...pods.flatMap((pod) => this.#store(pod))];
  }

  changed(change: PodChange<Pod>): readonly PodEffect<Pod>[] {
    if (change.kind === 'bookmark') {
      this.#version = change.version;
      return [];
    }
    const { kind, pod } = change;
    if (!isOlder(pod.version, this.#version)) this.#version = pod.version;
    if (kind === 'deleted') return this.#remove(pod);
    return this.#deleted.has(pod.uid) ? [] : this.#store(pod);
  }

  /** The API has no changes since the version: the pods are to be listed anew. */
  expired(): void {
    this.#version = undefined;
  }

  #store(pod: Pod): readonly PodEffect<Pod>[] {
    const before = this.#pods.get(pod.uid);
    if (before !== undefined && isOlder(pod.version, before.version)) return [];
    this.#pods.set(pod.uid, pod);
    if (before?.address === pod.address) return [];
    const effects: PodEffect<Pod>[] = [];
    if (before?.address !== undefined) effects.push({ kind: 'leave', pod: before, isGone: false });
    if (pod.address !== undefined) effects.push({ kind: 'join', pod });
    return effects;
  }

  /** A pod that drains has left before: it is reported once more, as gone. */
  #remove({ uid }: Pod): readonly PodEffect<Pod>[] {
    const pod = this.#pods.get(uid);
    if (this.#deleted.size >= deletedMax) this.#deleted.clear();
    this.#deleted.add(uid);
    return this.#pods.delete(uid) && pod !== undefined ? [{ kind: 'leave', pod, isGone: true }] : [];
  }
}

/** Versions are decimal numbers; others cannot be compared. */
function isOlder(version: string, than: string | undefined): boolean {
  if (than === undefined || !/^\d+$/.test(version) || !/^\d+$/.test(than)) return false;
  return BigInt(version) < BigInt(than);
}
