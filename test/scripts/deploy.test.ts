// The files of deploy/: flags that exist, drains that fit, and pods that are probed, spread and unprivileged.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Command } from 'commander';
import { describe, expect, it } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { chartId, render, renderingPath, renderings } from '../../scripts/render-chart.mjs';
import { root } from '../../scripts/root.mjs';
import { joinCommand } from '../../src/cli/commands/join.ts';
import { serveCommand } from '../../src/cli/commands/serve.ts';
import { readFleetFile } from '../../src/cli/serve/fleet/fleet-file.ts';

const deploy = join(root, 'deploy');
const commands: Readonly<Record<string, () => Command>> = { serve: serveCommand, join: joinCommand };

/** Arguments without an option of `kvasir serve` or `kvasir join`, or with a value that it does not take. */
function unknownIn([name = '', ...args]: readonly string[]): readonly string[] {
  const command = commands[name]?.();
  if (command === undefined) return [name];
  const { operands, unknown } = command.exitOverride().parseOptions([...args]);
  return [...operands, ...unknown];
}

function flagOf(args: readonly string[], name: string): string | undefined {
  const at = args.findIndex((arg) => arg === `--${name}` || arg.startsWith(`--${name}=`));
  return at < 0 ? undefined : (args[at]?.split('=')[1] ?? args[at + 1]);
}

/** Seconds from SIGTERM until a process that drains has ended. */
function drainSeconds(args: readonly string[]): number {
  return Number(flagOf(args, 'drain-wait') ?? 0) + Number(flagOf(args, 'drain-timeout'));
}

type Labels = Readonly<Record<string, string>>;

interface Container {
  readonly args: readonly string[];
  readonly ports: readonly { readonly name: string; readonly containerPort: number }[];
  readonly securityContext: object;
  readonly env: readonly { readonly name: string }[];
  readonly [probe: `${string}Probe`]: { readonly httpGet: { readonly path: string; readonly port: string } };
}

interface Manifest {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly spec: {
    readonly selector: { readonly matchLabels: Labels };
    readonly template: {
      readonly metadata: { readonly labels: Labels };
      readonly spec: {
        readonly terminationGracePeriodSeconds: number;
        readonly securityContext: object;
        readonly affinity: { readonly podAntiAffinity: object };
        readonly containers: readonly Container[];
      };
    };
  };
}

describe.each(Object.keys(renderings))('the chart with %s values', (name) => {
  const text = readFileSync(renderingPath(name), 'utf8');
  const manifests = parseAllDocuments(text).map((document) => document.toJS() as Manifest);
  const workloads = manifests.filter(({ kind }) => ['Deployment', 'StatefulSet'].includes(kind));
  const role = ({ spec }: Manifest) => spec.template.metadata.labels['app.kubernetes.io/component'] ?? '';

  it('is rendered from the present templates (node scripts/render-chart.mjs)', () => {
    expect(text.split(',')[0]).toBe(`# chart ${chartId()}`);
    const helm = process.env.HELM ?? 'helm';
    if (spawnSync(helm, ['version']).status === 0) expect(render(name, helm)).toBe(text);
  });

  it('runs every role with options that exist, and the labels that routers read', () => {
    const stores = name === 'everything' ? ['store'] : [];
    expect(workloads.map(role)).toEqual(expect.arrayContaining(['gateway', 'prefill', 'decode', ...stores]));
    for (const workload of workloads) {
      const [container] = workload.spec.template.spec.containers;
      const args = container?.args ?? [];
      expect(unknownIn(args)).toEqual([]);
      const { 'llm-d.ai/role': label } = workload.spec.template.metadata.labels;
      expect([label, flagOf(args, 'role')]).toEqual(
        role(workload) === 'gateway' ? ['both', undefined] : [role(workload), role(workload)],
      );
      expect(container?.env.map((each) => each.name)).toEqual(expect.arrayContaining(['KVASIR_TOKEN', 'KVASIR_NATS']));
    }
  });

  it('probes every pod on the port that it serves, and gives it the time to drain', () => {
    for (const { spec } of workloads) {
      const pod = spec.template.spec;
      const [container] = pod.containers;
      const { args, ports, startupProbe, livenessProbe, readinessProbe } = container as Container;
      const paths = [startupProbe, livenessProbe, readinessProbe].map((probe) => probe?.httpGet.path);
      expect(paths).toEqual(['/health', '/health', '/ready']);
      const served = flagOf(args, args[0] === 'join' ? 'probe-port' : 'port');
      expect(`${ports.find((each) => each.name === readinessProbe?.httpGet.port)?.containerPort}`).toBe(served);
      expect(pod.terminationGracePeriodSeconds).toBeGreaterThan(drainSeconds(args) + 5);
    }
  });

  it('spreads pods over nodes, bounds their disruption, and grants them no privileges', () => {
    const budgets = manifests.filter(({ kind }) => kind === 'PodDisruptionBudget');
    for (const { metadata, spec } of workloads) {
      const pod = spec.template.spec;
      expect(JSON.stringify(pod.affinity.podAntiAffinity)).toContain('kubernetes.io/hostname');
      expect(pod.securityContext).toMatchObject({ runAsNonRoot: true });
      expect(pod.containers[0]?.securityContext).toMatchObject({
        ...{ allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: ['ALL'] } },
      });
      const budget = budgets.find((each) => each.metadata.name === metadata.name);
      expect(budget?.spec.selector.matchLabels).toEqual(spec.selector.matchLabels);
    }
  });
});

it('the gateway of a fleet has options that exist, the time to drain, and a role that lists and watches pods', () => {
  const text = readFileSync(join(deploy, 'kubernetes', 'fleet.yaml'), 'utf8');
  const manifests = parseAllDocuments(text).map((document) => document.toJS());
  const of = (kind: string) => manifests.find((each) => each.kind === kind);
  const pod = of('Deployment').spec.template.spec;
  const { args } = pod.containers[0] as Container;
  expect(unknownIn(args)).toEqual([]);
  expect(pod.terminationGracePeriodSeconds).toBeGreaterThan(drainSeconds(args) + 5);
  expect(of('Role').rules).toEqual([{ apiGroups: [''], resources: ['pods'], verbs: ['list', 'watch'] }]);
  expect(of('RoleBinding').subjects[0].name).toBe(pod.serviceAccountName);
  const file = join(mkdtempSync(join(tmpdir(), 'kvasir-fleet-')), 'fleet.yaml');
  writeFileSync(file, of('ConfigMap').data['fleet.yaml']);
  expect(readFleetFile(file).pods).toMatchObject([{ selector: 'app=vllm', port: 8000 }]);
  rmSync(dirname(file), { recursive: true });
});

describe('systemd units', () => {
  const folder = join(deploy, 'systemd');
  it.each(readdirSync(folder))('%s has options that exist, drains, and is confined', (file) => {
    const lines = readFileSync(join(folder, file), 'utf8').split('\n');
    const settings = new Map(lines.map((line) => line.split(/=(.*)/, 2) as [string, string]));
    const args = (settings.get('ExecStart') ?? '').split(' ').slice(1);
    expect(unknownIn(args)).toEqual([]);
    expect(Number(settings.get('TimeoutStopSec'))).toBeGreaterThan(drainSeconds(args) + 5);
    expect(Object.fromEntries(settings)).toMatchObject({
      ...{ KillSignal: 'SIGTERM', DynamicUser: 'yes', ProtectSystem: 'strict', NoNewPrivileges: 'yes' },
    });
  });
});

describe('the container file', () => {
  const lines = readFileSync(join(deploy, 'container', 'Containerfile'), 'utf8').split('\n');
  const instruction = (word: string) => lines.findLast((line) => line.startsWith(`${word} `))?.slice(word.length + 1);

  it('starts a server with options that exist, as another user than root', () => {
    expect(unknownIn(JSON.parse(instruction('CMD') ?? '[]'))).toEqual([]);
    expect(instruction('USER')).toMatch(/^[1-9]/);
    expect(lines.some((line) => line.startsWith('HEALTHCHECK'))).toBe(true);
  });
});
