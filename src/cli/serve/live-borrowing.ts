// Configuration of lending for live instances and the gManager.
import { webcrypto } from 'node:crypto';
import type { TokenInstanceConfig } from '../../core/instance/token-instance.ts';
import { slackBlocks } from '../../core/lending/debtor/borrow-limit.ts';
import type { Engine } from '../../engine/engine.ts';
import type { KvShape } from '../../engine/load-model.ts';
import type { Backend } from '../../kernel/backend.ts';
import { loadNative } from '../../kernel/native/addon.ts';
import { createRemoteAttentionClient, RemoteAttentionListener } from '../../kernel/native/remote-attention-listener.ts';
import type { LendingManagerSettings } from '../../runtime/lending/lending-manager-host.ts';
import type { LenderRoutes } from '../../runtime/lending/lending-wire.ts';
import { type LendingHost, LiveLending } from '../../runtime/lending/live-lending.ts';
import type { InstanceDescription } from '../../runtime/threads/thread-protocol.ts';
import type { Messenger, PagesAddress } from '../../runtime/transfer/messenger.ts';
import { counterUniform } from '../../util/counter-random.ts';
import { type LayerGroup, pageTokens } from '../../util/step.ts';
import {
  type LendingRules,
  lendableOf,
  livePolicy,
  liveTimes,
  rangeBlocks,
  settlementOf,
  stagingBlocksOf,
} from '../options/lending-rules.ts';
import { defaultKvBytes } from './kv-memory.ts';
import type { InstanceSettings } from './worker-settings.ts';

/** KV memory for a request on the instance with the least: its own, and what all others lend in whole ranges. */
export function requestKvBytes(
  lenders: readonly { readonly kvBytes: number; readonly hostBytes: number }[],
  blockBytes: number,
  rules: LendingRules,
): number {
  const blocks = lenders.map(({ kvBytes, hostBytes }) => ({
    own: Math.floor(kvBytes / blockBytes),
    host: Math.floor(hostBytes / blockBytes),
  }));
  const lendable = blocks.map(({ own, host }) => lendableOf(own, rules) + lendableOf(host, rules));
  const lendableSum = lendable.reduce((sum, blocks) => sum + blocks, 0);
  const slack = slackBlocks(rangeBlocks);
  const capacities = blocks.map(({ own, host }, i) => own + Math.max(0, host + lendableSum - lendable[i] - slack));
  return Math.min(...capacities) * blockBytes;
}

/** Host memory of each instance for blocks of sequences. */
function hostBlocks({ lentHostBytes = 0 }: LendingRules, blockBytes: number): number {
  return Math.floor(lentHostBytes / blockBytes);
}

/** Settings of the gManager, the same in every process that may run it. */
export function managerSettings(rules: LendingRules): Omit<LendingManagerSettings, 'instances'> {
  const times = liveTimes(rules);
  const [seed = 1] = webcrypto.getRandomValues(new Uint32Array(1));
  return {
    times: rules.settle ? times : { ...times, settleUs: Number.MAX_SAFE_INTEGER },
    ...settlementOf(rules, pageTokens),
    uniform: (counter) => counterUniform(seed, 7, counter),
  };
}

/** Pages besides those of the pool: the staging buffer, then host memory. */
export function borrowingPages(
  settings: InstanceSettings,
  kv: KvShape,
): { readonly staging: number; readonly host: number } {
  const { lending } = settings;
  const { groups, pageBytes } = kv;
  const layers = groups[0]?.layers ?? 0;
  if (lending === undefined || layers === 0) return { staging: 0, host: 0 };
  const blocks = poolBlocks(settings, kv, layers);
  return {
    staging: stagingBlocksOf(blocks, rangeBlocks) * layers,
    host: hostBlocks(lending.rules, layers * pageBytes) * layers,
  };
}

/** Blocks of a pool, by default that of the instance itself. */
function poolBlocks({ contextTokens, instances, kvBytes }: InstanceSettings, kv: KvShape, layers: number): number {
  const bytes = kvBytes ?? defaultKvBytes(kv, contextTokens, instances);
  return Math.floor(bytes / kv.pageBytes / layers);
}

export interface Borrowing {
  readonly live: LiveLending;
  readonly machine: Pick<TokenInstanceConfig, 'borrowing' | 'serverOf'>;
  readonly lends: InstanceDescription['lends'];
}

interface BorrowingParts {
  readonly routes: LenderRoutes | undefined;
  /** The address for instances of other processes. */
  readonly pages: PagesAddress | undefined;
  readonly engine: Engine;
  readonly backend: Backend;
  readonly messenger: () => Messenger;
  readonly host: Pick<LendingHost, 'pageTable' | 'finishLoads' | 'isRead'>;
}

/**
 * The layer group whose blocks are lent: that of all layers, which keep every token. Blocks of a window end before their
 * sequence does, and a range of attention would lie at several creditors, one for each group.
 * @throws Error if layers have a window, or there are several groups
 */
export function lentGroup(groups: readonly LayerGroup[]): LayerGroup {
  const windowed = groups.find(({ window }) => window !== undefined);
  if (windowed !== undefined)
    throw new Error(
      `Cannot use --borrow: ${windowed.layers} layers of the model keep ${windowed.window} tokens (a window), and only layers that keep every token can use memory of other instances`,
    );
  const [group, ...others] = groups;
  if (group === undefined || others.length > 0)
    throw new Error(`Cannot use --borrow: the model has ${groups.length} layer groups, and memory is lent for one`);
  return group;
}

/** Undefined without lending. @throws Error in one line if the model or the machine does not support it */
export function openBorrowing(settings: InstanceSettings, parts: BorrowingParts): Borrowing | undefined {
  const { lending } = settings;
  const { routes, engine, backend, messenger } = parts;
  if (lending === undefined || routes === undefined) return undefined;
  const { kv } = engine.model;
  const group = lentGroup(kv.groups);
  if (backend.isa === 'reference') throw new Error('Cannot use --borrow: the kernels are not compiled');
  const { rules } = lending;
  const { instance } = routes;
  const own = poolBlocks(settings, kv, group.layers);
  const server = backend.createRemoteAttentionServer(engine.pool);
  const live = new LiveLending({
    ...{ routes, messenger: messenger(), servers: backend, server },
    host: {
      ...parts.host,
      connectServer: (address) =>
        createRemoteAttentionClient(engine.pool, address, parts.pages?.token ?? '', parts.pages?.transport),
      loanCounts: (debtor) => loadNative()?.remoteAttentionLoanCounts(server, debtor),
      copyPages: (from, to) => loadNative()?.copyPages(engine.pool, from, to),
    },
    layers: engine.layers.map(({ index }) => index),
    blockBytes: group.layers * kv.pageBytes,
    remoteAttentionPermilleMax: Math.round(rules.remoteAttentionShare * 1000),
    attention: {
      kind: rules.remoteAttention ?? 'dist',
      heads: { layers: group.layers, heads: engine.model.config.heads, headDim: kv.headDim },
      kvBytesPerToken: (group.layers * kv.pageBytes) / pageTokens,
      openReader: (of) => backend.createRemotePageReader(of),
      freeReader: (reader) => backend.freeRemoteAttentionServer(reader),
    },
  });
  const host = hostBlocks(rules, group.layers * kv.pageBytes);
  const lenders = lending.lenders === 'others' ? [] : lending.lenders;
  const lendable = lenders.map(
    ({ kvBytes, hostBytes }) =>
      lendableOf(poolBlocks({ ...settings, kvBytes }, kv, group.layers), rules) +
      lendableOf(Math.floor(hostBytes / kv.pageBytes / group.layers), rules),
  );
  const borrowing = {
    ...{ hostBlocks: host, hostFirstPage: engine.pages - host * group.layers },
    instance,
    policy: livePolicy(own, rules),
    times: liveTimes(rules),
    ...{ stagingBlocks: stagingBlocksOf(own, rangeBlocks), rangeBlocks },
    borrowableBlocks: lendable.reduce((sum, blocks, i) => sum + (i === instance ? 0 : blocks), host),
  };
  const attentionAddress =
    lending.lenders === 'others' && parts.pages !== undefined ? openAttentionListener(server, parts.pages) : undefined;
  const lends = { blocks: lendableOf(own, rules) + lendableOf(host, rules), attentionAddress };
  return { live, lends, machine: { borrowing, serverOf: (creditor) => live.serverOf(creditor) } };
}

/** Listens on the port after that of pages if that one is given, else on a free one. */
function openAttentionListener(server: number, { port = 0, ...pages }: PagesAddress): string {
  return new RemoteAttentionListener(server, { ...pages, port: port === 0 ? 0 : port + 1 }).address;
}
