// `kvasir join`: adds an instance to a cluster, on this machine or another one, until it is stopped.
import { Command, Option } from 'commander';
import { addLiveBorrowFlags, withoutDefaults } from '../options/borrow-options.ts';
import { refuseIdle } from '../options/ineffective-options.ts';
import {
  addClusterFlags,
  addModelFlags,
  givenOptions,
  instanceRoles,
  type JoinOptions,
  joinOptionsSchema,
  processTransports,
  readOptions,
} from '../options/options.ts';
import { refuseIdleStore } from '../options/store-flags.ts';
import type { JoinedMessage } from '../serve/child-instances.ts';
import { describeInstances } from '../serve/describe-instances.ts';
import { makeFolder } from '../serve/host/make-folder.ts';
import { refuseTooMuchMemory } from '../serve/memory-limits.ts';
import { endSoon, stopSignal } from '../serve/stop-signal.ts';
import { UsageError } from '../usage-error.ts';

export function joinCommand(): Command {
  const command = new Command('join').description('add an instance to a cluster whose gateways are `serve --nats`');
  return addLiveBorrowFlags(addClusterFlags(addModelFlags(command)))
    .addOption(
      new Option('--role <role>', 'what it computes; a store keeps what others compute (default: mixed)').choices(
        instanceRoles,
      ),
    )
    .option('--role-switch', 'a mixed instance may be given another role, as others always may (default: off)')
    .option(
      '--recheck',
      'refuse prompts that land here and would decode late, where gateways have --admission (default: off)',
    )
    .option('--pin-memory <share>', 'of the KV memory, what pinned prefixes may hold (default: 0)')
    .option('--host-memory <size>', 'for cached blocks besides its KV memory (default: none)')
    .option(
      '--ssd <folder>',
      'of its own, where cached blocks are kept besides: found again after a restart (default: none)',
    )
    .option('--ssd-size <size>', 'allocated at start (default: 10g)')
    .option('--pages-host <address>', 'where other instances reach the pages of this one (default: 127.0.0.1)')
    .option('--pages-port <n>', 'port for that, 0 for any (default: 0)')
    .addOption(
      new Option('--transport <way>', 'how pages go to and from other processes (default: auto)').choices(
        processTransports,
      ),
    )
    .addOption(
      new Option('--token <secret>', 'of all instances of the cluster (default: one that it draws)').env(
        'KVASIR_TOKEN',
      ),
    )
    .option('--name <name>', 'unlike all others of the cluster (default: host and process id)')
    .option('--log-level <level>', 'debug, info, warn, error or silent (default: info)')
    .action(async (flags: Record<string, unknown>) => {
      const given = withoutDefaults(flags);
      const options = readOptions(joinOptionsSchema, given);
      refuseIdle(givenOptions(given), { borrow: options.borrow, admission: 'none', roleSwitch: options.roleSwitch });
      if (options.role === 'store') refuseIdleStore(givenOptions(given), options);
      if (options.nats === undefined) throw new UsageError('Cannot join a cluster: --nats nats://HOST:PORT is missing');
      if (options.borrow && options.pagesPort > 65_533)
        throw new UsageError(`Cannot use --pages-port ${options.pagesPort}: --borrow needs the next two ports as well`);
      refuseTooMuchMemory(options, [{ role: options.role }]);
      if (options.ssd !== undefined) makeFolder(options.ssd, 'blocks');
      await serveAsMember(options.nats, options);
    });
}

/** Until it is told to stop. @throws Error when it can serve no more */
async function serveAsMember(nats: string, options: JoinOptions): Promise<void> {
  // Loaded when all is well: they take long, and whoever is refused needs neither.
  const [{ openLog }, { openClusterInstance }] = await Promise.all([
    import('../serve/host/server-log.ts'),
    import('../serve/open-cluster.ts'),
  ]);
  const { log } = openLog(options.logLevel, options.name === undefined ? {} : { instance: options.name });
  const member = await openClusterInstance(nats, options, log);
  try {
    console.log(describeInstances(member.modelId, [member.description]));
    console.log(`Joined as ${member.name}`);
    process.send?.({ joined: member.description, incarnation: member.incarnation } satisfies JoinedMessage);
    const end = await Promise.race([stopSignal(), member.ended]);
    if (end !== 'stop') throw new Error(`Cannot go on serving: ${end}`);
    log('Leaving: what runs here goes on elsewhere');
  } finally {
    await member.close();
    endSoon();
  }
}
