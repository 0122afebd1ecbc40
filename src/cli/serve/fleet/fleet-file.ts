// The fleet file of `--fleet`: external engines by their URLs, and by label selectors of Kubernetes pods.
import { z } from 'zod';
import { engineKinds, engineRoles } from '../../../runtime/fleet/engine-dialect.ts';
import type { ExternalEngineOptions } from '../../../runtime/fleet/external-engine.ts';
import type { PodEnginesOptions } from '../../../runtime/fleet/kubernetes/pod-engines.ts';
import type { KubernetesApi } from '../../../runtime/fleet/kubernetes/pod-watcher.ts';
import { inCamelCase } from '../../options/options.ts';
import { UsageError } from '../../usage-error.ts';
import { describeFileIssue } from '../../usage-issue.ts';
import { readYaml } from '../../yaml-file.ts';

const enginesMax = 256;
const selectorsMax = 16;

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
const kvEvents = z.union(
  [
    z.literal('off'),
    z.literal(false).transform(() => 'off' as const),
    endpoint.transform((own) => ({ endpoint: own, replay: undefined, topic: '' })),
    z.strictObject({ endpoint, replay: endpoint.optional(), topic: z.string().default('') }),
  ],
  'write off, tcp://HOST:PORT (a name or an IPv4 address, no * and no IPv6 address) or {endpoint, replay, topic}',
);
const settings = {
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
        ...{ url, ...settings },
        kvEvents: kvEvents.optional(),
      }),
    ),
  ],
  'write http://HOST:PORT, without user, password and query, or {url, kind, role, kv-events, api-key, priority-scheduling}',
);
const file = z.string().min(1);
const pods = z.preprocess(
  inCamelCase,
  z.strictObject({
    ...settings,
    selector: z.string().min(1),
    namespace: z.string().min(1).optional(),
    port: z.union([z.int().min(1).max(65_535), z.string().min(1)], 'write a number or the name of a port').optional(),
    scheme: z.enum(['http', 'https']).default('http'),
    kvEvents: z.union([z.literal('off'), z.literal(false).transform(() => 'off' as const)], 'write off').optional(),
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
  })
  .refine(({ engines, kubernetes }) => engines !== undefined || kubernetes !== undefined, 'add engines or kubernetes');

export interface FleetFile {
  /** The model's name at the engines; undefined: the first engine of the list that answers names it. */
  readonly model?: string | undefined;
  readonly engines: readonly ExternalEngineOptions[];
  readonly pods: readonly FleetPods[];
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
  const { model, engines = [], kubernetes = [] } = parsed.data;
  const urls = engines.map((each) => each.url.replace(/\/$/, ''));
  const twice = urls.find((each, i) => urls.indexOf(each) !== i);
  if (twice !== undefined) throw new UsageError(`Cannot read fleet ${path}: engine ${twice} is named twice`);
  const pods = kubernetes.map(({ api, namespace, selector, port, scheme, ...engine }) => {
    return { ...{ api, namespace, selector, port, scheme }, engine };
  });
  return { ...(model !== undefined && { model }), engines, pods };
}
