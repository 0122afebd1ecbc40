// A pod of the Kubernetes API as an engine: its address, its ports for KV events, and its role.
import { z } from 'zod';
import type { WatchedPod } from '../../../core/fleet/pod-set.ts';
import { type EngineRole, engineRoles, type KvEventSource } from '../engine-dialect.ts';

/** Annotations of pods, and the container ports in their place. */
const annotations = { kvEvents: 'kvasir/kv-events-port', replay: 'kvasir/kv-replay-port', topic: 'kvasir/kv-topic' };
const portNames = { kvEvents: 'kv-events', replay: 'kv-replay' };
/** Of llm-d, whose other values of it state both roles. */
const roleLabel = 'llm-d.ai/role';

const texts = z.record(z.string(), z.string()).nullish();

export const podSchema = z.object({
  metadata: z.object({
    ...{ name: z.string(), uid: z.string(), resourceVersion: z.string() },
    ...{ deletionTimestamp: z.string().nullish(), labels: texts, annotations: texts },
  }),
  spec: z
    .object({
      containers: z.array(
        z.object({
          ports: z.array(z.object({ name: z.string().optional(), containerPort: z.int() })).nullish(),
        }),
      ),
    })
    .nullish(),
  status: z
    .object({
      podIP: z.string().nullish(),
      conditions: z.array(z.object({ type: z.string(), status: z.string() })).nullish(),
    })
    .nullish(),
});
type PodObject = z.infer<typeof podSchema>;

export interface EnginePod extends WatchedPod {
  readonly name: string;
  /** Undefined: what the engine states holds. */
  readonly kvEvents: KvEventSource | undefined;
  readonly role: EngineRole | undefined;
}

/** @param port of the engine: a number, or the name of a container's port; undefined: the first one that is no port of KV events */
export function readPod({ metadata, spec, status }: PodObject, port: number | string | undefined): EnginePod {
  const ports = (spec?.containers ?? []).flatMap((container) => container.ports ?? []);
  const named = (name: string): number | undefined => ports.find((each) => each.name === name)?.containerPort;
  const annotated = (name: string): number | undefined => portIn(metadata.annotations?.[name]);
  const others = ports.filter(({ name }) => name !== portNames.kvEvents && name !== portNames.replay);
  const own = typeof port === 'string' ? named(port) : (port ?? others[0]?.containerPort);
  const isReady = status?.conditions?.some(({ type, status: is }) => type === 'Ready' && is === 'True') === true;
  const ip = status?.podIP ?? undefined;
  const host = ip?.includes(':') === true ? `[${ip}]` : ip;
  const serves = isReady && !metadata.deletionTimestamp && host !== undefined && own !== undefined;
  const kvPort = annotated(annotations.kvEvents) ?? named(portNames.kvEvents);
  const replayPort = annotated(annotations.replay) ?? named(portNames.replay);
  return {
    ...{ uid: metadata.uid, name: metadata.name, version: metadata.resourceVersion },
    address: serves ? `${host}:${own}` : undefined,
    kvEvents:
      kvPort === undefined || host === undefined
        ? undefined
        : {
            endpoint: `tcp://${host}:${kvPort}`,
            replay: replayPort === undefined ? undefined : `tcp://${host}:${replayPort}`,
            topic: metadata.annotations?.[annotations.topic] ?? '',
          },
    role: engineRoles.find((role) => role === metadata.labels?.[roleLabel]),
  };
}

function portIn(text: string | undefined): number | undefined {
  const port = Number(text);
  return Number.isInteger(port) && port > 0 && port < 65536 ? port : undefined;
}
