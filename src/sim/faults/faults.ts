// Faults of a simulated cluster, by name: what happens to instances, to the conductor and to what they say to one another.
import type { InstanceIndex } from '../../core/protocol/ids.ts';

/** What happens to messages, each by chance; what happens to instances, conductor and gManager, at a time or again and again. */
export const faultKinds = [
  'loss',
  'duplication',
  'delay',
  'crash',
  'partition',
  'slow',
  'conductor',
  'gmanager',
] as const;
export type FaultKind = (typeof faultKinds)[number];

export interface Fault {
  readonly kind: FaultKind;
  /** Of messages: the share that it happens to. */
  readonly ratio: number;
  /** Of delayed messages: on average. */
  readonly byUs: number;
  /** Of a fault that happens once. */
  readonly atUs: number | undefined;
  /** On average, between two of a fault that happens again and again. */
  readonly everyUs: number | undefined;
  /** How long it lasts: exactly, or on average where it happens again and again. Infinity: for good. */
  readonly forUs: number;
  /** Undefined: any, by chance. */
  readonly instances: readonly InstanceIndex[] | undefined;
  /** How many times as long a slow instance's steps take. */
  readonly factor: number;
}

/** When instances speak and when the conductor loses patience. */
export interface FaultTimes {
  readonly reportUs: number;
  readonly silentUs: number;
  readonly timeoutUs: number;
  readonly triesMax: number;
}

export const defaultFaultTimes: FaultTimes = {
  reportUs: 500_000,
  silentUs: 3_000_000,
  timeoutUs: 600_000_000,
  triesMax: 5,
};

export interface FaultPlan {
  readonly seed: number;
  readonly faults: readonly Fault[];
  readonly times: FaultTimes;
}

export const faultNames = [
  'loss',
  'duplication',
  'delay',
  'partition',
  'crash',
  'restart',
  'slow node',
  'conductor restart',
  'gManager restart',
] as const;
export type FaultName = (typeof faultNames)[number];
