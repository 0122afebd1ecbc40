// The fleet file of `--fleet`: external engines by their URLs.
import { z } from 'zod';
import { engineKinds, engineRoles } from '../../../runtime/fleet/engine-dialect.ts';
import type { ExternalEngineOptions } from '../../../runtime/fleet/external-engine.ts';
import { inCamelCase } from '../../options/options.ts';
import { UsageError } from '../../usage-error.ts';
import { describeFileIssue } from '../../usage-issue.ts';
import { readYaml } from '../../yaml-file.ts';

const enginesMax = 256;

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
const engine = z.union(
  [
    url.transform((own) => ({ url: own })),
    z.preprocess(
      inCamelCase,
      z.strictObject({
        url,
        kind: z.enum(engineKinds).optional(),
        kvEvents: kvEvents.optional(),
        apiKey: z.string().min(1).optional(),
        role: z.enum(engineRoles).optional(),
        priorityScheduling: z.boolean().optional(),
      }),
    ),
  ],
  'write http://HOST:PORT, without user, password and query, or {url, kind, role, kv-events, api-key, priority-scheduling}',
);
const fleetSchema = z.strictObject({
  model: z.string().min(1).optional(),
  engines: z.array(engine).min(1).max(enginesMax),
});

export interface FleetFile {
  /** The model's name at the engines; undefined: the first engine of the list that answers names it. */
  readonly model?: string | undefined;
  readonly engines: readonly ExternalEngineOptions[];
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
  const urls = parsed.data.engines.map((each) => each.url.replace(/\/$/, ''));
  const twice = urls.find((each, i) => urls.indexOf(each) !== i);
  if (twice !== undefined) throw new UsageError(`Cannot read fleet ${path}: engine ${twice} is named twice`);
  return parsed.data;
}
