// Examines a cluster from its bus: its record, the processes that announce themselves, and whether each receives pages at its address.
import { type Agreement, bitEqualForm, formsDiffer } from '../../core/membership/agreement.ts';
import type { Bus } from '../bus/bus.ts';
import { probePages } from '../transfer/page-reachability.ts';
import { readAgreement, readAnyAgreement } from '../wire/agreement-record.ts';
import { type InstanceAnnouncement, readAnyAnnouncement, readInstance } from '../wire/messages.ts';
import { commonVersion, describeVersions, type StatedVersions } from '../wire/versions.ts';
import { agreementKey } from './agreement-keeper.ts';

/** Three heartbeats. */
const listenMs = 1_600;

/** A process of the cluster, as it announces itself. */
export interface Examined {
  readonly process: string;
  readonly role: string;
  readonly version: string;
  readonly isa: string | undefined;
  readonly inputs: string | undefined;
  readonly pages: string | undefined;
  /** Why its pages address does not answer here, or `yes`. */
  readonly reached: string | undefined;
}

export interface Examination {
  readonly processes: readonly Examined[];
  /** Faults, each in one line. */
  readonly findings: readonly string[];
}

type Probe = typeof probePages;

/** Takes two seconds, and five if an address does not answer. @throws Error if the records cannot be read */
export async function examineCluster(bus: Bus, probe: Probe = probePages): Promise<Examination> {
  const stored = await bus.records.read(agreementKey);
  const announced = await listen(bus);
  const instances = announced.flatMap(({ instance }) => instance ?? []);
  const probed = instances.flatMap(({ name, pages }) =>
    pages === undefined ? [] : [probe(pages).then((why) => [name, why] as const)],
  );
  const reached = new Map(await Promise.all(probed));
  const rejected = stored === undefined ? await bus.records.readRejected?.(agreementKey) : undefined;
  const why = rejected?.why === 'replayed' ? 'it is an old one' : 'it was written without the token of this process';
  const record = rejected === undefined ? recordOf(stored?.value) : { unreadable: why };
  const findings = [
    ...recordFindings(record, announced),
    ...versionFindings(announced),
    ...instances.flatMap((instance) => instanceFindings(instance, record, reached)),
    ...mixedSets(instances),
  ];
  const processes = announced.map(({ name, kind, versions, instance }) => ({
    ...{ process: name, role: instance?.role ?? kind, version: describeVersions(versions), isa: instance?.isa },
    ...{ inputs: instance?.root.inputForm, pages: instance?.pages },
    reached: instance?.pages === undefined ? undefined : (reached.get(name) ?? 'yes'),
  }));
  return { processes, findings };
}

interface Announced {
  readonly name: string;
  readonly kind: string;
  readonly versions: StatedVersions;
  /** Undefined for gateways, and for instances of another version. */
  readonly instance: InstanceAnnouncement | undefined;
}

async function listen(bus: Bus): Promise<readonly Announced[]> {
  const byName = new Map<string, Announced>();
  const stop = bus.subscribe('beat.*', (bytes, subject) => {
    const kind = subject.slice('beat.'.length);
    if (kind !== 'instance' && kind !== 'gateway') return;
    try {
      const { name, incarnation: _, ...versions } = readAnyAnnouncement(bytes);
      const isReadable = kind === 'instance' && commonVersion(versions) !== undefined;
      byName.set(name, { name, kind, versions, instance: isReadable ? readInstance(bytes) : undefined });
    } catch {
      byName.set(subject, { name: `a process on ${subject}`, kind, versions: {}, instance: undefined });
    }
  });
  await new Promise((resolve) => setTimeout(resolve, listenMs));
  stop();
  return [...byName.values()].toSorted((a, b) => (a.name < b.name ? -1 : 1));
}

type FoundRecord = Agreement | 'absent' | { readonly unreadable: string };

function recordOf(bytes: Uint8Array | undefined): FoundRecord {
  if (bytes === undefined) return 'absent';
  try {
    const { hashKey: _, ...versions } = readAnyAgreement(bytes);
    if (commonVersion(versions) !== undefined) return readAgreement(bytes);
    return { unreadable: `it has wire version ${describeVersions(versions)}, this release ${describeVersions()}` };
  } catch (error) {
    return { unreadable: error instanceof Error ? error.message : String(error) };
  }
}

function recordFindings(record: FoundRecord, announced: readonly Announced[]): readonly string[] {
  const findings: string[] = [];
  if (record === 'absent' && announced.length > 0)
    findings.push(`The cluster has no record, and ${announced.length} processes run: they restore it when one joins`);
  if (record !== 'absent' && 'unreadable' in record) findings.push(`The record of the cluster: ${record.unreadable}`);
  for (const kind of ['gateway', 'instance'])
    if (!announced.some((each) => each.kind === kind)) findings.push(`No ${kind} announces itself`);
  return findings;
}

function versionFindings(announced: readonly Announced[]): readonly string[] {
  return announced.flatMap(({ name, versions }) =>
    commonVersion(versions) === undefined
      ? [`${name} has wire version ${describeVersions(versions)}, this release ${describeVersions()}`]
      : [],
  );
}

function instanceFindings(
  { name, root, pages, unreachable = [] }: InstanceAnnouncement,
  record: FoundRecord,
  reached: ReadonlyMap<string, string | undefined>,
): readonly string[] {
  const why = reached.get(name);
  const agreed = record === 'absent' || 'unreadable' in record ? undefined : record;
  const differs = agreed?.root && formsDiffer(agreed.root, root);
  return [
    ...(differs === undefined ? [] : [`Instance ${name} differs from the record: ${differs}`]),
    ...(why === undefined ? [] : [`Instance ${name}: its KV pages at ${pages} cannot be reached from here: ${why}`]),
    ...unreachable.map((other) => `Instance ${name} cannot reach the KV pages of instance ${other}`),
  ];
}

function mixedSets(instances: readonly InstanceAnnouncement[]): readonly string[] {
  const names = new Map<string, string[]>();
  for (const { name, isa, root } of instances)
    if (isa !== undefined && root.inputForm !== bitEqualForm) names.set(isa, [...(names.get(isa) ?? []), name]);
  if (names.size < 2) return [];
  const sets = [...names].map(([isa, of]) => `${isa} (${of.join(', ')})`).join(', ');
  return [`Instances have different instruction sets: ${sets}: failed requests continue on equal ones alone`];
}
