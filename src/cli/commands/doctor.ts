// `kvasir doctor`: examines a cluster, prints its processes and faults, and exits with 1 if there is a fault.
import { Command, Option } from 'commander';
import { z } from 'zod';
import { addNatsFlags, natsFields, natsServers } from '../options/nats-options.ts';
import { readOptions } from '../options/options.ts';
import { clusterToken } from '../serve/host/cluster-token.ts';
import { printTable } from '../terminal/table.ts';
import { UsageError } from '../usage-error.ts';

const schema = z.object({ ...natsFields, token: z.string().optional() });

export function doctorCommand(): Command {
  const command = new Command('doctor');
  const token = new Option('--token <secret>', 'The secret of the processes of the cluster').env('KVASIR_TOKEN');
  return addNatsFlags(command)
    .addOption(token)
    .action(async (flags: Record<string, unknown>) => doctor(readOptions(schema, flags)));
}

async function doctor(options: z.infer<typeof schema>): Promise<void> {
  const servers = natsServers(options);
  if (servers === undefined) throw new UsageError('Cannot examine a cluster: --nats nats://HOST:PORT is missing');
  const [{ connectNats }, { AuthenticatedBus }, { examineCluster }] = await Promise.all([
    import('../../runtime/bus/nats-bus.ts'),
    import('../../runtime/bus/authenticated-bus.ts'),
    import('../../runtime/processes/examine-cluster.ts'),
  ]);
  const cluster = options.cluster ?? 'kvasir';
  const secret = { token: clusterToken(options.token), cluster, log: (line: string) => console.log(line) };
  const bus = new AuthenticatedBus(await connectNats(servers, cluster), secret);
  try {
    const { processes, findings } = await examineCluster(bus);
    printTable(processes);
    for (const finding of findings) console.log(finding);
    if (findings.length === 0) console.log('No faults found');
    else process.exitCode = 1;
  } finally {
    await bus.close();
  }
}
