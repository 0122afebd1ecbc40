// Options of KV events that this server publishes for routers of other projects.
import type { Command } from 'commander';
import { z } from 'zod';
import type { KvEventSource } from '../../../runtime/fleet/engine-dialect.ts';
import type { KvEventPublisher } from '../../../runtime/fleet/kv-event-publisher.ts';
import { groups } from '../../terminal/help.ts';
import { UsageError } from '../../usage-error.ts';

const endpoint = z
  .string()
  .regex(/^tcp:\/\/[^\s:/@[\]]+:\d{1,5}$/, 'write tcp://HOST:PORT, with * for all addresses, and no IPv6 address')
  .refine((given) => portOf(given) <= 65_535, 'the port must be at most 65535')
  .optional();

export const kvEventFields = { kvEvents: endpoint, kvEventsReplay: endpoint, kvEventsTopic: z.string().optional() };
type KvEventOptions = Readonly<z.infer<z.ZodObject<typeof kvEventFields>>>;

export function addKvEventFlags(command: Command): Command {
  return command
    .optionsGroup(groups.cluster)
    .option(
      '--kv-events <endpoint>',
      'Publish the cached blocks to routers as vLLM does, over ZeroMQ at tcp://HOST:PORT (default: none)',
    )
    .option('--kv-events-replay <endpoint>', 'Replay lost KV events there (default: the port after --kv-events)')
    .option('--kv-events-topic <topic>', 'Publish KV events under this topic (default: an empty one)');
}

/** Undefined: no KV events are published. @throws UsageError if the options contradict each other */
export function kvEventSource({
  kvEvents,
  kvEventsReplay: replay,
  kvEventsTopic: topic,
}: KvEventOptions): Required<KvEventSource> | undefined {
  if (kvEvents === undefined) {
    const wrong = replay === undefined ? topic && 'topic' : 'replay';
    if (wrong) throw new UsageError(`Cannot use --kv-events-${wrong}: it needs --kv-events`);
    return undefined;
  }
  return { endpoint: kvEvents, replay: replay ?? nextPort(kvEvents), topic: topic ?? '' };
}

/** @throws Error in one line if an address is in use */
export async function openKvEvents(options: KvEventOptions): Promise<KvEventPublisher | undefined> {
  const source = kvEventSource(options);
  if (source === undefined) return undefined;
  const { KvEventPublisher } = await import('../../../runtime/fleet/kv-event-publisher.ts');
  return KvEventPublisher.open(source);
}

/** What `GET /kv_event_sources` answers, in the form of vLLM: all instances together are the rank 0. */
export function kvEventSources(publisher: KvEventPublisher | undefined): Readonly<Record<string, object>> | undefined {
  if (publisher === undefined) return undefined;
  const { endpoint, replay, topic } = publisher.source;
  return { 0: { enable_kv_cache_events: true, publisher: 'zmq', endpoint, replay_endpoint: replay, topic } };
}

function portOf(address: string): number {
  return Number(address.slice(address.lastIndexOf(':') + 1));
}

/** The port 0 is a free one. */
function nextPort(address: string): string {
  const port = portOf(address);
  if (port === 65_535) throw new UsageError(`Cannot use --kv-events ${address}: add --kv-events-replay`);
  return address.replace(/\d+$/, String(port === 0 ? 0 : port + 1));
}
