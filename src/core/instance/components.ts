// The components of an instance that serves requests. One line registers a component.

import { AttentionWorkers, type AttentionWorkersConfig } from '../attention-workers/attention-workers.ts';
import type { CreditorSteps } from '../cost/creditor-steps.ts';
import { Borrower } from '../lending/debtor/borrower.ts';
import type { BorrowingConfig } from '../lending/debtor/borrower-config.ts';
import { type PipelineConfig, PipelinePrefill } from '../pipeline/pipeline-prefill.ts';
import type { Identified, InstanceContext } from '../scheduler/component.ts';
import type { RunningRequest } from '../scheduler/executor/executor.ts';
import { Grammars } from '../scheduler/grammars.ts';
import type { InstanceConfig } from '../scheduler/instance-config.ts';
import { Pinning } from '../scheduler/pinning.ts';
import { SparseKv } from '../scheduler/sparse-kv.ts';
import { type HandOffConfig, HandOffs } from '../transfer/hand-off/hand-offs.ts';
import { type MigrationConfig, RequestMigrator } from '../transfer/migration/request-migrator.ts';
import { type PrefixFetchConfig, PrefixFetches } from '../transfer/prefix-fetch/prefix-fetches.ts';

export interface ComponentsConfig extends PrefixFetchConfig, PipelineConfig {
  readonly cost: CreditorSteps;
  /** Undefined: the instance hands off no request. */
  readonly handOff?: Omit<HandOffConfig, 'reservesFirst'> | undefined;
  /** The instance lends memory to other instances and borrows theirs; only for models of one layer group without a window. */
  readonly borrowing?: BorrowingConfig | undefined;
  /** Requests that outgrow the memory here continue at bigger instances; not together with borrowing. */
  readonly migration?: MigrationConfig | undefined;
  /**
   * The pages lie at attention workers; not together with hand-offs, borrowing, tiers and pins, which read pages here.
   */
  readonly attentionWorkers?: AttentionWorkersConfig | undefined;
}

/** Configuration of an instance with these components; the memory that components reserve follows from it. */
export type ServingConfig = Omit<InstanceConfig, 'receivePages' | 'stagingBlocks' | 'hostRows'> & ComponentsConfig;

export type ServingComponents<Request extends Identified, S extends RunningRequest> = ReturnType<
  typeof createComponents<Request, S>
>;

/**
 * In the order in which their hooks are called: the pipeline handles `loaded` and `prefixMissing` before prefix fetch, the
 * hand-off handles `streamBroken` before the pipeline.
 */
export function createComponents<Request extends Identified, S extends RunningRequest>(
  context: InstanceContext<Request, S>,
  config: ComponentsConfig,
) {
  const { borrowing, migration, attentionWorkers } = config;
  const { sparsity } = context.config;
  const handOff = new HandOffs(context, handOffConfig(config));
  return {
    borrower: borrowing && new Borrower(context, borrowing, config.cost),
    handOff,
    pipeline: new PipelinePrefill(context, handOff.sender, config),
    prefixes: new PrefixFetches(context, config),
    pinning: new Pinning(context),
    migrator: migration && new RequestMigrator(context, handOff.sender, migration),
    attentionWorkers: attentionWorkers && new AttentionWorkers(context, attentionWorkers),
    sparseKv: sparsity && new SparseKv(context, sparsity),
    grammars: new Grammars(context),
  };
}

/** With borrowed memory every hand-off is layer-wise: blocks are sent before they move to creditors. */
function handOffConfig({ handOff, borrowing }: ComponentsConfig): HandOffConfig | undefined {
  if (handOff === undefined) return undefined;
  return {
    ...handOff,
    layerWise: handOff.layerWise || borrowing !== undefined,
    reservesFirst: borrowing !== undefined,
  };
}

/** The block cache has pages that receive prompts, a staging buffer and rows of host memory where components use them. */
export function instanceConfig(config: ServingConfig): InstanceConfig {
  const { handOff, borrowing, attentionWorkers } = config;
  const { hostBlocks: blocks = 0, hostFirstPage: firstPage } = borrowing ?? {};
  return {
    ...config,
    cacheParts: attentionWorkers?.partition === 'requests' ? attentionWorkers.workers : undefined,
    receivePages: handOff?.receivePages,
    stagingBlocks: borrowing?.stagingBlocks,
    hostRows: firstPage === undefined ? undefined : { blocks, firstPage },
  };
}
