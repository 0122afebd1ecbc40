// The order of test files: the longest first, so that no core idles while the last file runs.
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** Files of ten seconds and more, the longest first. The first one has a worker of its own. */
const long = [
  ...['contract/backend-amx-emulated', 'e2e/cluster/cluster-borrowing', 'engine/golden', 'e2e/cluster/cluster-roles'],
  ...[
    'runtime/lending/borrowing',
    'runtime/processes/cluster-members',
    'cli/commands',
    'runtime/transfer/hand-offs',
    'docs/guide',
    'e2e/cluster/cluster',
    'e2e/cluster/cluster-groups',
  ],
  ...[
    'bench/command',
    'sim/faults/mutants',
    'e2e/cluster/cluster-tiers',
    'e2e/serving',
    'e2e/cluster/cluster-network',
    'e2e/cluster/kills',
  ],
  ...[
    'runtime/threads/restarts',
    'runtime/pipeline/pipeline',
    'cli/combinations',
    'native/attention',
    'e2e/cluster/cluster-children',
    'e2e/cluster/cluster-links',
  ],
  ...[
    'contract/backend-native',
    'cli/plan',
    'runtime/threads/tiers',
    'cli/hub',
    'runtime/pipeline/pipeline-over-bus',
    'e2e/cluster/cluster-store',
  ],
  ...['native/linear', 'sim/faults/lending-chaos', 'bench/cost', 'cli/report', 'engine/architectures', 'e2e/slo'],
  // By then what both link has been compiled for the fuzz target, as far as cores were idle.
  ...['sim/faults/request-chaos', 'native/remote-attention', 'native/remote-transfers'],
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
