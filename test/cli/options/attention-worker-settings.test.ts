// Which attention workers instances of `serve` and `join` use, and combinations that are refused with the option to change.
import { describe, expect, test } from 'vitest';
import {
  attentionWorkerOptions,
  servedAttentionWorkers,
  withWorkerRoles,
} from '../../../src/cli/options/attention-worker-settings.ts';
import {
  type InstanceJoinOptions,
  joinOptionsSchema,
  readOptions,
  serveOptionsSchema,
} from '../../../src/cli/options/options.ts';

const served = (flags: Record<string, unknown>) => servedAttentionWorkers(readOptions(serveOptionsSchema, flags));
const joined = (flags: Record<string, unknown>) =>
  servedAttentionWorkers(
    readOptions(joinOptionsSchema, { nats: 'nats://127.0.0.1:4222', ...flags }) as InstanceJoinOptions,
  );

const nats = 'nats://127.0.0.1:4222';
const addresses = '10.0.0.2:9101,10.0.0.3:9101';
const token = 'a secret of this test';
const [prefill, decode, mixed] = ['prefill', 'decode', 'mixed'].map((role) => ({ role }));
const shared = { partition: 'heads', form: 'ranges', modelWorkers: 1, batches: 1 };
const two = { processes: 2, transport: 'auto' };

test('an attention worker has a shard and a token, and refuses options without effect', () => {
  const workerOf = (flags: Record<string, unknown>) =>
    attentionWorkerOptions(readOptions(joinOptionsSchema, flags), flags);
  const flags = { role: 'attention', shard: '1/2', token, threads: '3', kvMemory: '1g', transport: 'tcp' };
  expect(workerOf(flags)).toMatchObject({ shard: { index: 0, workers: 2 }, token, threads: 3, kvMemory: 2 ** 30 });
  for (const [name, value] of [
    ['nats', nats],
    ['dop', '1,2'],
    ['sparse', 'pyramid'],
    ['eviction', 'lru'],
    ['pinMemory', 0.1],
    ['logFormat', 'json'],
  ] as const)
    expect(() => workerOf({ ...flags, [name]: value })).toThrow(
      /^Cannot use --role attention: --[a-z-]+ has no effect/,
    );
  expect(() => workerOf({ ...flags, shard: undefined })).toThrow('--shard I/N is missing');
  expect(() => workerOf({ ...flags, token: undefined })).toThrow('--token is missing');
});

test('a decode instance of a cluster has attention workers as threads, processes or at addresses', () => {
  expect(joined({ role: 'decode', dop: '1,2' })).toEqual({ ...shared, threads: 2 });
  expect(joined({ role: 'decode', dop: '1,2', attentionWorkers: 'processes' })).toEqual({ ...shared, ...two });
  const there = { addresses: addresses.split(','), token, transport: 'auto', moveAfterS: undefined };
  expect(joined({ role: 'decode', attentionWorkers: addresses, token })).toEqual({ ...shared, ...there });
  expect(joined({ role: 'mixed', dop: '1,3', partition: 'requests' })).toMatchObject({ partition: 'requests' });
  expect(joined({ role: 'decode', dop: '1,3', partition: 'requests' })).toMatchObject({ threads: 3 });
  expect(joined({ role: 'decode' })).toBeUndefined();
});

test('with --nats several instances that decode have attention workers each', () => {
  const instances = [prefill, decode, decode, mixed];
  expect(served({ nats, instances, dop: '1,2', attentionWorkers: 'processes' })).toEqual({
    ...shared,
    processes: 2,
    transport: undefined,
  });
  expect(served({ nats, instances: [prefill, decode], attentionWorkers: addresses, token })).toMatchObject({ token });
});

test.each([
  [{ role: 'prefill', dop: '1,2' }, 'a prefill instance computes attention itself: remove --role prefill'],
  [{ role: 'store', dop: '1,2' }, 'a store computes nothing: remove --role store'],
  [{ role: 'decode', attentionWorkers: addresses, token, moveShardsAfter: 5 }, 'remove --move-shards-after'],
  [{ role: 'decode', attentionWorkers: addresses }, 'need the --token of these processes'],
  [{ role: 'mixed', dop: '1,2', roleSwitch: true }, 'keeps its role: remove --role-switch'],
  [{ role: 'mixed', dop: '1,2', borrow: true }, 'cannot be lent: remove --borrow'],
  [{ role: 'mixed', dop: '1,2', pinMemory: 0.1 }, 'cannot be pinned: remove --pin-memory'],
  [{ role: 'mixed', dop: '1,2', hostMemory: '1g' }, 'no lower tier: remove --host-memory'],
  [{ role: 'mixed', dop: 'auto', attentionWorkers: addresses, token }, 'write --dop 1,2'],
  [{ role: 'mixed', dop: '1,2', threads: 4, attentionThreads: 1 }, 'each of 2 attention workers needs a thread'],
  [{ role: 'mixed', dop: '2,2', threads: 4, attentionThreads: 3 }, 'leaves 1 of 4 threads for 2 model workers'],
  [{ role: 'mixed', attentionWorkers: addresses, token, attentionThreads: 1 }, 'have threads of their own'],
  [{ role: 'mixed', attentionThreads: 1 }, 'it needs --dop MODEL,ATTENTION'],
  [{ role: 'mixed', staggeredBatches: 2 }, 'it needs --dop or --attention-workers'],
] as const)('join refuses %j', (flags, why) => {
  expect(() => joined(flags)).toThrow(why);
});

test.each([
  [{ partition: 'requests' }, 'it needs --dop MODEL,ATTENTION'],
  [{ attentionForm: 'prev-new' }, 'it needs --dop MODEL,ATTENTION'],
  [{ attentionWorkers: 'processes' }, 'it needs --dop MODEL,ATTENTION'],
  [{ staggeredBatches: 2 }, 'it needs --dop or --attention-workers'],
  [{ dop: '9,2' }, 'it has 9 model workers, and 8 are supported'],
  [{ dop: '2,2', staggeredBatches: 2 }, '2 model workers run 3 batches: remove --staggered-batches'],
  [
    { dop: '1,2', attentionWorkers: '127.0.0.1:9101' },
    'it has 2 attention workers, and --attention-workers has 1 addresses',
  ],
  [{ dop: '1,2', moveShardsAfter: 5 }, 'it needs --attention-workers HOST:PORT,... and --partition heads'],
  [{ dop: '1,2', staggeredBatches: 3 }, 'staggered-batches'],
  [{ dop: '1,2', instances: '2' }, 'only prefill instances can be beside one decode instance'],
  [{ nats, instances: [prefill, decode, decode], attentionWorkers: addresses, token }, '2 instances decode'],
  [{ nats, instances: [prefill, decode], dop: '1,2', cppGroup: 2 }, 'remove --cpp-group'],
  [{ instances: [prefill, decode, decode], dop: '1,2' }, 'only prefill instances can be beside one decode instance'],
  [{ nats, instances: [prefill, { ...decode, ssd: 'blocks' }], dop: '1,2' }, 'remove host-memory and ssd'],
])('serve refuses %j', (flags, why) => {
  expect(() => served(flags)).toThrow(why);
});

describe('instances with the roles model and attention', () => {
  const [model, attention] = ['model', 'attention'].map((role) => ({ role }));
  const roles = (flags: Record<string, unknown>) => readOptions(serveOptionsSchema, withWorkerRoles(flags));

  test('are one instance with attention workers as processes', () => {
    const options = roles({ instances: [model, attention, attention] });
    expect(options).toMatchObject({ dop: '1,2', attentionWorkers: 'processes', instances: [{ role: 'mixed' }] });
    expect(servedAttentionWorkers(options)).toEqual({ ...shared, processes: 2 });
  });

  test('decode the prompts of prefill instances beside them, with their own settings', () => {
    const { instances } = roles({ instances: [prefill, { ...model, threads: 3 }, attention] });
    expect(instances).toMatchObject([{ role: 'prefill' }, { role: 'decode', threads: 3 }]);
  });

  test('leave other instances as they are', () => {
    expect(roles({ instances: [prefill, decode] })).toMatchObject({ instances: [prefill, decode] });
    expect(roles({ instances: 3 }).instances).toHaveLength(3);
    expect(roles({}).instances).toBeUndefined();
  });

  test.each([
    [{ instances: [attention] }, 'Cannot use instances: role attention needs one instance with role model'],
    [{ instances: [model, prefill] }, 'Cannot use instances: role model needs instances with role attention'],
    [{ instances: [model, model, attention] }, 'one is supported: dop: 2,1 has replicas'],
    [
      { instances: [model, attention], dop: '1,1' },
      'Cannot use dop: the roles model and attention of instances state it',
    ],
    [{ instances: [model, attention], attentionWorkers: 'threads' }, 'Cannot use attention-workers: the roles'],
    [
      { instances: [model, { ...attention, kvMemory: '1g' }] },
      'Cannot use instances.kv-memory: attention workers share',
    ],
  ])('are refused with the field: %j', (flags, why) => {
    expect(() => roles(flags)).toThrow(why);
  });
});
