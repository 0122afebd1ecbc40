// What the conductor keeps of a request that it has taken: where it is tried, for which time, and what its client has heard.

import type { PipelineGroup } from '../protocol/events.ts';
import type { InstanceIndex, RequestId } from '../protocol/ids.ts';
import type { GenerationEvent } from '../protocol/ports.ts';
import type { AdmissionResult } from './admission/admission-controller.ts';
import type { PlacementRecords } from './placed.ts';

/** Where a request goes: `decodeAt` where another instance decodes. */
export interface Route {
  readonly instance: InstanceIndex;
  readonly decodeAt: InstanceIndex | undefined;
  /** Others compute the prompt with `instance`, who is the first of them. */
  readonly group?: PipelineGroup | undefined;
}

/** Where a try stands, as far as its instances have told. */
type Stage = 'queued' | 'prefill' | 'decode';

/** One way of a request through instances. They know it by a name of its own: what they say of another try is never taken for this one. */
export interface Attempt extends Route {
  readonly id: RequestId;
  /** Undefined for batch jobs: nobody is placed by them. */
  readonly placed: PlacementRecords | undefined;
  readonly decoding: AdmissionResult | undefined;
  /** To be computed where it decodes. */
  inlineTokens: number;
  /** Of a batch job: what it may come to hold. */
  readonly jobTokens: number;
  /** Where it goes on, it may be that only there is room for what it has grown to. */
  decodeAt: InstanceIndex | undefined;
  stage: Stage;
  /** It was said to run. */
  started: boolean;
  /** The instance that decodes has it all: nobody else is needed. */
  joined: boolean;
  /** When an instance last said that it has it; while a group computes, all members who have to. */
  heardUs: number;
  /** Members who have not said so since then; undefined: nobody has. */
  unheard?: Set<InstanceIndex> | undefined;
}

/** What a client has heard of its request, so that another try goes on from there. */
export interface Progress<Request> {
  /** Its instance says this; false when the client knows it already. */
  hear(event: GenerationEvent): boolean;
  /** Its client has had so many tokens of output in all. */
  reach(outputs: number): void;
  /** Why it has ended, where its last token has been heard. */
  readonly ended: 'stop' | 'length' | undefined;
  /** The request as an instance takes it that is to go on from here. */
  resume(id: RequestId): Request;
}

/** Where losses are not told, somebody has to notice. */
export interface Patience {
  /** An instance that says nothing for so long is lost; a try that no instance says it has is lost. */
  readonly silentUs: number;
  /** Of a request, from submit to its end. */
  readonly timeoutUs: number;
}

export interface RetryConfig<Request> {
  /** Tries of a request at most, the first one included. */
  readonly triesMax: number;
  readonly progressOf: (request: Request) => Progress<Request>;
  /** Undefined: every loss is told, and whatever finds no instance fails at once. */
  readonly patience?: Patience | undefined;
}

/** A request that was accepted and has not ended. */
export interface Tracked<Request> {
  readonly id: RequestId;
  /** Undefined: it is tried once. */
  readonly progress: Progress<Request> | undefined;
  readonly submittedUs: number;
  tries: number;
  /** Its client knows that it runs. */
  started: boolean;
  /** Undefined: it waits for an instance to come. */
  now: Attempt | undefined;
}

/** Instances that have something of a try. */
export function legsOf({
  instance,
  decodeAt,
  group,
  joined = false,
}: Route & { joined?: boolean }): readonly InstanceIndex[] {
  if (decodeAt === undefined) return [instance];
  if (joined) return [decodeAt];
  return group === undefined ? [instance, decodeAt] : [...group.members, decodeAt];
}

/** Has the instance something of a try? */
export function isLegOf(legs: Route & { joined?: boolean }, instance: InstanceIndex): boolean {
  if (legs.decodeAt === undefined) return instance === legs.instance;
  return instance === legs.decodeAt || (legs.joined !== true && legsOf(legs).includes(instance));
}

/** An instance reports it: have all who are to since the last time? One member of a group would wait for ever for another that has let go. */
export function heardFrom(now: Attempt, instance: InstanceIndex): boolean {
  const computing = now.placed?.computing;
  if (now.group === undefined || now.stage === 'decode' || computing === undefined) return true;
  // The others need not have heard of it before it starts.
  if (now.stage === 'queued' && instance === now.instance) return true;
  now.unheard ??= new Set(computing);
  now.unheard.delete(instance);
  for (const member of now.unheard) if (computing.has(member)) return false;
  now.unheard = undefined;
  return true;
}

/** The instance whose words the client hears. */
export function speaksFor({ instance, decodeAt }: Route): InstanceIndex {
  return decodeAt ?? instance;
}

/** The first try has the request's own name. */
export function attemptName(id: RequestId, tries: number): RequestId {
  return tries === 1 ? id : `${id}~${tries}`;
}

/** The request that a try's name is of. */
export function requestOf(name: RequestId): RequestId {
  return name.replace(/~\d+$/, '');
}
