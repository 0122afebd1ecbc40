// The fleet file of `--fleet`: external engines by their URLs, and by label selectors of Kubernetes pods.
import { z } from 'zod';
import { engineKinds } from '../../../core/protocol/instance-report.ts';
import { type EngineRole, engineRoles } from '../../../runtime/fleet/engine-dialect.ts';
import type { ExternalEngineOptions } from '../../../runtime/fleet/external-engine.ts';
import type { OtherGateways } from '../../../runtime/fleet/gateway-snapshots.ts';
import type { PodEnginesOptions } from '../../../runtime/fleet/kubernetes/pod-engines.ts';
import type { KubernetesApi } from '../../../runtime/fleet/kubernetes/pod-watcher.ts';
import { inCamelCase } from '../../options/options.ts';
import { UsageError } from '../../usage-error.ts';
import { describeFileIssue } from '../../usage-issue.ts';
import { readYaml } from '../../yaml-file.ts';

const enginesMax = 256;
const selectorsMax = 16;
const gatewaysMax = 16;

const url = z
  .string()
  .regex(/^https?:\/\/[^\s/@?#]+(\/[^\s@?#]*)?$/, 'write http://HOST:PORT, without user, password and query')
  .refine(URL.canParse, 'write http://HOST:PORT');
/** The host of an engine: it binds a wildcard address, to which no client can connect. */
const endpoint = z
  .string()
  .regex(
    /^tcp:\/\/[^\s:*/@[\]]+:\d{1,5}$/,
    'write tcp://HOST:PORT with the name or the IPv4 address of a host, no * and no IPv6 address',
  );
/** YAML 1.1 reads `off` as false. */
const off = z.union([z.literal('off'), z.literal(false).transform(() => 'off' as const)], 'write off');
const kvEvents = z.union(
  [
    off,
    endpoint.transform((own) => ({ endpoint: own, replay: undefined, topic: '' })),
    z.strictObject({ endpoint, replay: endpoint.optional(), topic: z.string().default('') }),
  ],
  'write off, tcp://HOST:PORT (a name or an IPv4 address, no * and no IPv6 address) or {endpoint, replay, topic}',
);
const load = z.union(
  [
    off,
    endpoint.transform((own) => ({ endpoint: own, topic: 'load' })),
    z.strictObject({ endpoint, topic: z.string().default('load') }),
  ],
  'write off, tcp://HOST:PORT (a name or an IPv4 address, no * and no IPv6 address) or {endpoint, topic}',
);
/** The machine that stands for an engine in `simulate --fleet`. */
const simulated = z.preprocess(
  inCamelCase,
  z.strictObject({
    hardware: z.string().min(1).optional(),
    tp: z.int().min(1).optional(),
    pp: z.int().min(1).optional(),
    precision: z.enum(['bf16', 'fp8']).optional(),
    chunkTokens: z.int().min(1).optional(),
    sequences: z.int().min(1).optional(),
    cacheBlocks: z.int().min(1).optional(),
  }),
);
const settings = {
  simulated: simulated.optional(),
  kind: z.enum(engineKinds).optional(),
  apiKey: z.string().min(1).optional(),
  role: z.enum(engineRoles).optional(),
  priorityScheduling: z.boolean().optional(),
};
const engine = z.union(
  [
    url.transform((own) => ({ url: own })),
    z.preprocess(
      inCamelCase,
      z.strictObject({
        ...{ url, ...settings, bootstrap: url.optional() },
        ...{ kvEvents: kvEvents.optional(), load: load.optional() },
      }),
    ),
  ],
  'write http://HOST:PORT, without user, password and query, or {url, kind, role, kv-events, load, api-key, priority-scheduling, bootstrap}',
);
const file = z.string().min(1);
/** Sent as a bearer token. */
const gatewayKey = z.string().regex(/^[\x21-\x7e]{16,}$/, 'write 16 characters or more, without spaces');
const pods = z.preprocess(
  inCamelCase,
  z.strictObject({
    ...settings,
    selector: z.string().min(1),
    namespace: z.string().min(1).optional(),
    port: z.union([z.int().min(1).max(65_535), z.string().min(1)], 'write a number or the name of a port').optional(),
    scheme: z.enum(['http', 'https']).default('http'),
    ...{ kvEvents: off.optional(), load: off.optional() },
    api: z
      .preprocess(inCamelCase, z.strictObject({ url, tokenFile: file.optional(), caFile: file.optional() }))
      .optional(),
  }),
);
const fleetSchema = z
  .strictObject({
    model: z.string().min(1).optional(),
    engines: z.array(engine).min(1).max(enginesMax).optional(),
    kubernetes: z
      .preprocess((given) => (Array.isArray(given) ? given : [given]), z.array(pods).min(1).max(selectorsMax))
      .optional(),
    gateways: z.strictObject({ key: gatewayKey, peers: z.array(url).max(gatewaysMax).default([]) }).optional(),
  })
  .refine(({ engines, kubernetes }) => engines !== undefined || kubernetes !== undefined, 'add engines or kubernetes');

export interface FleetFile {
  /** The model's name at the engines; undefined: the first engine of the list that answers names it. */
  readonly model?: string | undefined;
  readonly engines: readonly ExternalEngineOptions[];
  readonly pods: readonly FleetPods[];
  readonly gateways?: OtherGateways | undefined;
}

/** An engine as `simulate --fleet` has it. */
export interface SimulatedEngine {
  readonly name: string;
  readonly role: EngineRole;
  readonly takesPriorities: boolean;
  /** In place of the options of the same names. */
  readonly machine: Readonly<z.infer<typeof simulated>>;
}

/** The pods of a label selector. */
export interface FleetPods extends Omit<PodEnginesOptions, 'api' | 'namespace'> {
  /** Undefined: those of the pod that the gateway runs in. */
  readonly api?: KubernetesApi | undefined;
  readonly namespace?: string | undefined;
}

function inKebabCase(name: string): string {
  return name.replace(/[A-Z]/g, (capital) => `-${capital.toLowerCase()}`);
}

/** @throws UsageError that names the invalid field, without its value */
export function readFleetFile(path: string): FleetFile {
  const { model, engines = [], kubernetes = [], gateways } = parseFleet(path);
  const pods = kubernetes.map(({ api, namespace, selector, port, scheme, simulated: _, ...engine }) => {
    return { ...{ api, namespace, selector, port, scheme }, engine };
  });
  const named = engines.map((each) => {
    const { simulated: _, ...engine } = { simulated: undefined, ...each };
    return engine;
  });
  const others = { ...(model !== undefined && { model }), ...(gateways !== undefined && { gateways }) };
  return { ...others, engines: named, pods };
}

/** The engines of the file for a simulation. Pods have no number there. @throws UsageError */
export function readSimulatedFleet(path: string): readonly SimulatedEngine[] {
  const { engines = [], kubernetes } = parseFleet(path);
  if (kubernetes !== undefined || engines.length === 0)
    throw new UsageError(`Cannot simulate fleet ${path}: write its engines one by one, without kubernetes`);
  return engines.map((engine) => {
    const { url, role, priorityScheduling, simulated } = {
      ...{ role: undefined, priorityScheduling: undefined, simulated: undefined },
      ...engine,
    };
    return {
      ...{ name: url, role: role ?? 'mixed', takesPriorities: priorityScheduling === true },
      machine: simulated ?? {},
    };
  });
}

/** @throws UsageError that names the invalid field, without its value */
function parseFleet(path: string): z.infer<typeof fleetSchema> {
  let given: unknown;
  try {
    given = readYaml(path);
  } catch (error) {
    const reason = error instanceof Error ? error.message.split('\n')[0] : 'unreadable';
    throw new UsageError(`Cannot read fleet ${path}: ${reason}`);
  }
  const parsed = fleetSchema.safeParse(given);
  if (!parsed.success)
    throw new UsageError(`Cannot read fleet ${path}: ${describeFileIssue(parsed.error.issues, inKebabCase)}`);
  const urls = (parsed.data.engines ?? []).map((each) => each.url.replace(/\/$/, ''));
  const twice = urls.find((each, i) => urls.indexOf(each) !== i);
  if (twice !== undefined) throw new UsageError(`Cannot read fleet ${path}: engine ${twice} is named twice`);
  return parsed.data;
}
