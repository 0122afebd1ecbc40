// `kvasir bench NAME`: the benches by name.
import { Command } from 'commander';
import { addCommands, type NamedCommands } from '../named-commands.ts';

/** In the order of the help. */
export const benches: NamedCommands = {
  engine: {
    description: 'Median prefill and decode steps of a model, without scheduler and HTTP',
    load: async () => (await import('../bench/engine.ts')).engineCommand(),
  },
  kernel: {
    description: 'Attention or GEMM, beside the memory roof and arithmetic peak of the same run',
    load: async () => (await import('../bench/kernel.ts')).kernelCommand(),
  },
  http: {
    description: 'Streams, shared prefixes, a long prompt and overload against any OpenAI endpoint',
    load: async () => (await import('../bench/http.ts')).httpCommand(),
  },
  overhead: {
    description: "Cost of a token over HTTP beyond the engine's step, measured in turns",
    load: async () => (await import('../bench/overhead.ts')).overheadCommand(),
  },
  fleet: {
    description: 'Overhead of the gateway in front of an external engine, beside a bare proxy, in turns',
    load: async () => (await import('../bench/fleet/fleet.ts')).fleetCommand(),
  },
  accuracy: {
    description: 'Perplexity, divergence and agreement of forms of weights, inputs and KV, against float32 arithmetic',
    load: async () => (await import('../bench/accuracy.ts')).accuracyCommand(),
  },
  grammar: {
    description: 'Decode steps with the masks of a grammar against the same steps without, in turns',
    load: async () => (await import('../bench/grammar.ts')).grammarCommand(),
  },
  cost: {
    description: 'Cost models against measured servers, each point simulated in a closed loop',
    load: async () => (await import('../bench/cost.ts')).costCommand(),
  },
  placement: {
    description: 'Time of cache-aware placement decisions over a full prefix index',
    load: async () => (await import('../bench/placement.ts')).placementCommand(),
  },
  'hand-off': {
    description: 'Time to first token with prefill and decode on two instances against one',
    load: async () => (await import('../bench/hand-off.ts')).handOffCommand(),
  },
  'early-start': {
    description: 'Time to first token behind a fetched prefix: started during the fetch, or after it',
    load: async () => (await import('../bench/early-start.ts')).earlyStartCommand(),
  },
  pipeline: {
    description: 'Time to first token with prompts computed by a pipeline group, against one instance',
    load: async () => (await import('../bench/pipeline.ts')).pipelineCommand(),
  },
  tiers: {
    description: 'Time to first token with the prefix in the KV pool, in host memory, on SSD, or not cached',
    load: async () => (await import('../bench/tiers.ts')).tiersCommand(),
  },
  fidelity: {
    description: 'A load served live on this machine, and simulated with step times fitted to it',
    load: async () => (await import('../bench/fidelity.ts')).fidelityCommand(),
  },
  kills: {
    description: 'Goodput of an overloaded cluster of processes, in alternating windows with and without random faults',
    load: async () => (await import('../bench/kills.ts')).killsCommand(),
  },
  overload: {
    description: 'Goodput within SLO of chats and reports by admission policy, in an overloaded cluster of processes',
    load: async () => (await import('../bench/cluster/overload.ts')).overloadCommand(),
  },
  messenger: {
    description: 'KV pages over TCP and shared memory, verified and acknowledged, against a bare socket loop',
    load: async () => (await import('../bench/messenger.ts')).messengerCommand(),
  },
  'attention-workers': {
    description: 'Steps of a model worker and an attention worker, on one core each',
    load: async () => (await import('../bench/attention-workers.ts')).attentionWorkersCommand(),
  },
  'dist-attention': {
    description: 'Attention over two instances against two threads of one, and queries against fetched pages',
    load: async () => (await import('../bench/dist-attention.ts')).distAttentionCommand(),
  },
  borrow: {
    description: 'Borrowed KV memory: speed, settlements, and borrowing against moving to a larger instance',
    load: async () => (await import('../bench/borrow.ts')).borrowCommand(),
  },
  sparsity: {
    description: 'Recall, perplexity and agreement with a part of the KV, by method and budget',
    load: async () => (await import('../bench/sparsity/quality.ts')).sparsityCommand(),
  },
  'sparse-serving': {
    description: 'Closed loops of requests with full KV and with a KV budget in the same KV memory, in turns',
    load: async () => (await import('../bench/sparsity/serving.ts')).sparseServingCommand(),
  },
  'sparse-decode': {
    description: 'Decode steps of a model over all keys, kept tokens and chosen pages, beside the bytes that they read',
    load: async () => (await import('../bench/sparsity/decode.ts')).sparseDecodeCommand(),
  },
  soak: {
    description: 'Run mixed requests, cancels, slow readers, bad requests and bursts, then check that nothing leaks',
    load: async () => (await import('../bench/soak.ts')).soakCommand(),
  },
};

/** Adds the benches; the one that `words` names is loaded. */
export async function benchCommand(words: readonly string[]): Promise<Command> {
  const command = new Command('bench');
  await addCommands(command, benches, words);
  return command;
}
