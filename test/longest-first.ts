// The order of test files: the longest first, so that no core idles while the last file runs.
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** Files of ten seconds and more, the longest first. The first one has a worker of its own. */
const long = [
  ...['contract/backend-amx-emulated', 'e2e/cluster/cluster-borrowing', 'engine/golden', 'engine/attention-workers'],
  ...['e2e/cluster/cluster-roles', 'e2e/attention-workers', 'e2e/attention-worker-deaths'],
  ...['e2e/cluster/cluster', 'e2e/cluster/cluster-settlement', 'runtime/transfer/hand-offs'],
  ...['runtime/processes/cluster-members', 'runtime/lending/borrowing', 'docs/guide', 'sim/faults/mutants'],
  ...['runtime/threads/restarts', 'sim/faults/request-chaos', 'e2e/cluster/cluster-tiers', 'engine/invariance'],
  ...['e2e/cluster/cluster-network', 'e2e/cluster/cluster-lost-disk', 'e2e/cluster/kills', 'runtime/threads/tiers'],
  ...['native/linear', 'e2e/cluster/cluster-links', 'contract/backend-native', 'e2e/cluster/cluster-groups'],
  ...['native/attention', 'engine/attention-workers/faulty-network', 'runtime/pipeline/pipeline'],
  ...['engine/architectures', 'e2e/cluster/cluster-attention-workers', 'sim/workload/conversation'],
  ...[
    'bench/command',
    'bench/cost',
    'e2e/cluster/cluster-children',
    'engine/model-slices',
    'e2e/cluster/cluster-store',
  ],
  ...['e2e/serving', 'runtime/pipeline/pipeline-over-bus', 'runtime/transfer/preempted-hand-offs'],
  ...['contract/messenger-native', 'sim/overload', 'bench/hand-off', 'e2e/cluster/cluster-prefixes', 'cli/hub'],
  ...['cli/commands', 'scripts/build-native', 'cli/report', 'e2e/slo', 'fuzz/fuzz', 'sim/pipeline', 'cli/combinations'],
  ...['runtime/processes/attention-workers-over-bus', 'cli/plan', 'sim/faults/lending-chaos'],
  // By then what these link has been compiled for the fuzz target, as far as cores were idle.
  ...['native/remote-attention', 'native/remote-transfers', 'native/workers/attention-workers'],
];

function pathOf(name: string): string | undefined {
  const paths = ['test', 'slow.test'].map((kind) => fileURLToPath(new URL(`${name}.${kind}.ts`, import.meta.url)));
  return paths.find((path) => existsSync(path));
}

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const gone = long.find((name) => pathOf(name) === undefined);
    if (gone !== undefined) throw new Error(`Cannot order the tests: there is no file ${gone}`);
    const places = new Map(long.map((name, place) => [pathOf(name), place]));
    const placeOf = ({ moduleId }: TestSpecification) => places.get(moduleId) ?? long.length;
    return (await super.sort(files)).sort((a, b) => placeOf(a) - placeOf(b));
  }
}
