// Options of several simulated gateways.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { type GatewaySettings, gatewayBalancings } from '../../sim/engine/simulation-config.ts';
import { numeric } from '../options/schema-parts.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';

/** That of instance processes. */
const loadReportMsDefault = 20;

export const gatewayFields = {
  gateways: numeric(z.number().int().min(1).max(64)).default(1),
  gatewayBalancing: z.enum(gatewayBalancings).default('round-robin'),
  loadReportMs: numeric(z.number().positive()).default(loadReportMsDefault),
};

const gatewaySchema = z.object(gatewayFields);

interface Conflicting {
  readonly faults: readonly unknown[];
  readonly check: boolean;
  readonly roleSwitch: boolean;
  readonly standby: number;
  readonly fleet?: unknown;
}

export function addGatewayFlags(command: Command): Command {
  return command
    .optionsGroup(groups.scheduling)
    .option('--gateways <n>', 'Spread requests over this number of gateways with a conductor each (default: 1)')
    .addOption(
      new Option(
        '--gateway-balancing <kind>',
        'Send requests to the gateways in turn, or those of a session to the same one (default: round-robin)',
      ).choices(gatewayBalancings),
    )
    .option(
      '--load-report-ms <ms>',
      'With --gateways, let an instance report the load of the other gateways at most once in this time (default: 20)',
    );
}

/** Undefined: one gateway. @throws UsageError */
export function gatewaySettings({
  gateways: count,
  gatewayBalancing: balancing,
  loadReportMs,
  ...options
}: z.infer<typeof gatewaySchema> & Conflicting): GatewaySettings | undefined {
  if (count === 1) return undefined;
  const flag =
    (options.faults.length > 0 && 'faults') ||
    (options.check && 'check') ||
    (options.roleSwitch && 'role-switch') ||
    (options.standby > 0 && 'standby') ||
    (options.fleet !== undefined && 'fleet');
  if (flag) throw new UsageError(`Cannot use --gateways ${count} with --${flag}: it is simulated with one gateway`);
  return { count, balancing, loadReportUs: Math.ceil(loadReportMs * 1000) };
}
