// Options of one role that override those of all instances: hardware, parallel sizes, precision, NICs, price.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import { groups } from '../terminal/help.ts';
import { numeric } from './schema-parts.ts';

/** Roles of simulated instances; standby instances decode requests that outgrew others. */
export const instanceRoles = ['prefill', 'decode', 'mixed', 'standby'] as const;
type FlagRole = (typeof instanceRoles)[number];

const count = numeric(z.number().int().min(1)).optional();
const positive = numeric(z.number().positive()).optional();

/** The options, named like those of all roles. */
const settings = {
  hardware: z.string().optional(),
  tp: count,
  pp: count,
  precision: z.enum(['bf16', 'fp8']).optional(),
  nicGbps: positive,
  pricePerHour: positive,
};

type FieldsOf<R extends FlagRole> = {
  [K in keyof typeof settings as `${R}${Capitalize<K>}`]: (typeof settings)[K];
};

function fieldsOf<R extends FlagRole>(role: R): FieldsOf<R> {
  const entries = Object.entries(settings).map(([name, schema]) => [
    `${role}${name.charAt(0).toUpperCase()}${name.slice(1)}`,
    schema,
  ]);
  return Object.fromEntries(entries) as FieldsOf<R>;
}

/** `prefillHardware`, `decodeTp`... */
export const roleFields = {
  ...fieldsOf('prefill'),
  ...fieldsOf('decode'),
  ...fieldsOf('mixed'),
  ...fieldsOf('standby'),
};

const roleSchema = z.object(roleFields);

/** Settings of all instances, which roles may override. */
interface CommonSettings {
  readonly hardware: string;
  readonly tp?: number | undefined;
  readonly pp: number;
  readonly precision: 'bf16' | 'fp8';
  readonly nicGbps?: number | undefined;
  readonly pricePerHour?: number | undefined;
}

export function settingsOf(role: FlagRole, options: CommonSettings & z.infer<typeof roleSchema>): CommonSettings {
  return {
    hardware: options[`${role}Hardware`] ?? options.hardware,
    tp: options[`${role}Tp`] ?? options.tp,
    pp: options[`${role}Pp`] ?? options.pp,
    precision: options[`${role}Precision`] ?? options.precision,
    nicGbps: options[`${role}NicGbps`] ?? options.nicGbps,
    pricePerHour: options[`${role}PricePerHour`] ?? options.pricePerHour,
  };
}

export function addRoleFlags(command: Command): Command {
  command.optionsGroup(groups.roles);
  for (const role of instanceRoles) {
    const its = `${role} instances`;
    command
      .option(`--${role}-hardware <name>`, `Build ${its} from this hardware (default: --hardware)`)
      .option(`--${role}-tp <n>`, `Split each layer of ${its} over this number of devices (default: --tp)`)
      .option(`--${role}-pp <n>`, `Split the layers of ${its} over this number of stages (default: --pp)`)
      .addOption(
        new Option(`--${role}-precision <type>`, `Use this precision on ${its} (default: --precision)`).choices([
          'bf16',
          'fp8',
        ]),
      )
      .option(`--${role}-nic-gbps <n>`, `Limit the NICs of ${its} to this rate (default: --nic-gbps)`)
      .option(
        `--${role}-price-per-hour <price>`,
        `Charge this price per machine of ${its} (default: --price-per-hour)`,
      );
  }
  return command;
}
