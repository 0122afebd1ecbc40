// Gateways and instances of a cluster over a bus inside this process, with real threads; each is closed at the end of its test.
import { afterEach } from 'vitest';
import type { InstanceSettings } from '../../../src/cli/serve/worker-settings.ts';
import type { InstanceRole } from '../../../src/core/protocol/instance-report.ts';
import type { AdmissionSettings } from '../../../src/core/router/admission/length-admission.ts';
import type { PipelineSettings } from '../../../src/core/router/placement/placer.ts';
import type { Bus } from '../../../src/runtime/bus/bus.ts';
import { agreeOn } from '../../../src/runtime/processes/agree.ts';
import { ClusterGateway } from '../../../src/runtime/processes/cluster-gateway.ts';
import { type JoinedInstance, joinCluster } from '../../../src/runtime/processes/join.ts';
import type { BlockRoot } from '../../../src/runtime/threads/thread-protocol.ts';
import { dyingWorker } from '../../bundled-worker.ts';
import { admitAll, liveRoot, liveSettings } from '../threads/instances.ts';

/** Larger than the model's vocabulary: token ids are not checked here. */
export const vocabSize = 100_000;
export const pagesHere = { host: '127.0.0.1', port: 0, token: undefined };

interface InstanceChoices {
  readonly role?: InstanceRole;
  readonly roleSwitch?: boolean;
  readonly transport?: 'auto' | 'tcp';
  readonly settings?: Partial<InstanceSettings>;
}

interface GatewayChoices {
  readonly name?: string;
  readonly timeoutS?: number;
  readonly traces?: boolean;
  readonly pipeline?: PipelineSettings;
  readonly admission?: AdmissionSettings;
  readonly stepUs?: number;
  readonly log?: (line: string) => void;
}

interface BusMembers {
  /** Root of the model of all instances. */
  readonly root: BlockRoot;
  /** The last incarnation; it increases with each start. */
  readonly incarnation: number;
  instance(bus: Bus, name: string, choices?: InstanceChoices): Promise<JoinedInstance>;
  gateway(bus: Bus, choices?: GatewayChoices): Promise<ClusterGateway>;
  /** Registers a call for the end of the test; later registrations run first. */
  closes(close: () => unknown): void;
}

let incarnations = 0;

/** To be called at the top level of a test file. */
export function busMembers(): BusMembers {
  const root = liveRoot();
  const closing: (() => unknown)[] = [];
  afterEach(async () => {
    for (const close of closing.splice(0).toReversed()) await close();
  });
  return {
    root,
    get incarnation() {
      return incarnations;
    },
    instance: async (bus, name, { role = 'mixed', roleSwitch = false, transport, settings } = {}) => {
      const own = { bus, name, incarnation: ++incarnations, role, roleSwitch, root, vocabSize, log: () => {} };
      const pages = { ...pagesHere, transport };
      const joined = await joinCluster({
        ...own,
        pages,
        entry: dyingWorker,
        settings: () => ({ ...liveSettings, ...settings }),
      });
      closing.push(() => joined.close());
      return joined;
    },
    gateway: async (bus, choices = {}) => {
      const {
        name = 'g',
        timeoutS = 60,
        traces = false,
        pipeline,
        admission = admitAll,
        stepUs,
        log = () => {},
      } = choices;
      const agreement = await agreeOn(bus, { modelFingerprint: root.modelFingerprint, root: undefined });
      const own = { bus, name, incarnation: ++incarnations, agreement, traces, pipeline, log };
      const limits = { queueMax: 64, stepUs, timeoutUs: timeoutS * 1e6 };
      const cluster = new ClusterGateway({ ...own, ...limits, admission });
      closing.push(() => cluster.close());
      return cluster;
    },
    closes: (close) => closing.push(close),
  };
}

/** Polls until the condition holds; the test's timeout bounds it. */
export async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5));
}

export const serving = (cluster: ClusterGateway) => cluster.instances().filter(({ ready }) => ready).length;
