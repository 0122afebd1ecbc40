// The addresses of published KV events, and options that are refused.
import { expect, it } from 'vitest';
import { readOptions, serveOptionsSchema } from '../../../src/cli/options/options.ts';
import { kvEventSource } from '../../../src/cli/serve/fleet/kv-event-options.ts';

const sourceOf = (flags: Record<string, unknown>) => kvEventSource(readOptions(serveOptionsSchema, flags));

it('replays at the next port unless another address is given', () => {
  expect(sourceOf({})).toBeUndefined();
  const endpoint = 'tcp://*:5557';
  expect(sourceOf({ kvEvents: endpoint })).toEqual({ endpoint, replay: 'tcp://*:5558', topic: '' });
  const [replay, topic] = ['tcp://10.0.0.1:7000', 'kv@pod@m'];
  expect(sourceOf({ kvEvents: endpoint, kvEventsReplay: replay, kvEventsTopic: topic })).toEqual({
    ...{ endpoint, replay, topic },
  });
  expect(sourceOf({ kvEvents: 'tcp://127.0.0.1:0' })).toMatchObject({ replay: 'tcp://127.0.0.1:0' });
});

it.each([
  [{ kvEvents: '5557' }, 'write tcp://HOST:PORT'],
  [{ kvEvents: 'tcp://[::1]:5557' }, 'no IPv6 address'],
  [{ kvEvents: 'tcp://*:70000' }, 'the port must be at most 65535'],
  [{ kvEvents: 'tcp://*:65535' }, 'add --kv-events-replay'],
  [{ kvEventsReplay: 'tcp://*:5558' }, 'Cannot use --kv-events-replay: it needs --kv-events'],
  [{ kvEventsTopic: 'a' }, 'Cannot use --kv-events-topic: it needs --kv-events'],
])('refuses %o', (flags, why) => {
  expect(() => sourceOf(flags)).toThrow(why);
});
