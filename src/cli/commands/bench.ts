// `kvasir bench NAME`: the benches by name.
import { Command } from 'commander';
import { addCommands, type CommandLoaders } from '../named-commands.ts';

/** In the order of the help. */
const benches: CommandLoaders = {
  engine: async () => (await import('../bench/engine.ts')).engineCommand(),
  kernel: async () => (await import('../bench/kernel.ts')).kernelCommand(),
  http: async () => (await import('../bench/http.ts')).httpCommand(),
  overhead: async () => (await import('../bench/overhead.ts')).overheadCommand(),
  accuracy: async () => (await import('../bench/accuracy.ts')).accuracyCommand(),
  grammar: async () => (await import('../bench/grammar.ts')).grammarCommand(),
  cost: async () => (await import('../bench/cost.ts')).costCommand(),
  placement: async () => (await import('../bench/placement.ts')).placementCommand(),
  'hand-off': async () => (await import('../bench/hand-off.ts')).handOffCommand(),
  'early-start': async () => (await import('../bench/early-start.ts')).earlyStartCommand(),
  pipeline: async () => (await import('../bench/pipeline.ts')).pipelineCommand(),
  tiers: async () => (await import('../bench/tiers.ts')).tiersCommand(),
  fidelity: async () => (await import('../bench/fidelity.ts')).fidelityCommand(),
  kills: async () => (await import('../bench/kills.ts')).killsCommand(),
  messenger: async () => (await import('../bench/messenger.ts')).messengerCommand(),
  'attention-workers': async () => (await import('../bench/attention-workers.ts')).attentionWorkersCommand(),
  'dist-attention': async () => (await import('../bench/dist-attention.ts')).distAttentionCommand(),
  borrow: async () => (await import('../bench/borrow.ts')).borrowCommand(),
  sparsity: async () => (await import('../bench/sparsity/quality.ts')).sparsityCommand(),
  'sparse-serving': async () => (await import('../bench/sparsity/serving.ts')).sparseServingCommand(),
  'sparse-decode': async () => (await import('../bench/sparsity/decode.ts')).sparseDecodeCommand(),
  soak: async () => (await import('../bench/soak.ts')).soakCommand(),
};

/** Adds the bench that `words` names, or all benches when it names none. */
export async function benchCommand(words: readonly string[]): Promise<Command> {
  const command = new Command('bench').description('Measure a part of the system; every bench has its own --help');
  await addCommands(command, benches, words);
  return command;
}
