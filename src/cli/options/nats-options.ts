// Options of the NATS servers that connect the processes of a cluster.
import { type Command, Option } from 'commander';
import { z } from 'zod';
import type { NatsServers } from '../../runtime/bus/nats-connection.ts';
import { groups } from '../terminal/help.ts';
import { UsageError } from '../usage-error.ts';
import { numeric } from './schema-parts.ts';

const natsUrls = z
  .string()
  .regex(/^(nats|tls):\/\/[^\s/,]+\/?(,(nats|tls):\/\/[^\s/,]+\/?)*$/, 'write nats://HOST:PORT or tls://HOST:PORT');
export const clusterName = z.string().regex(/^[\w-]{1,64}$/, 'letters, digits, - and _, at most 64');
const file = z.string().min(1).optional();

export const natsFields = {
  nats: natsUrls.optional(),
  natsCa: file,
  natsCert: file,
  natsKey: file,
  natsNkey: file,
  natsCreds: file,
  natsReplicas: numeric(z.number().int().min(1).max(5)).optional(),
  insecure: z.boolean().default(false),
  cluster: clusterName.optional(),
};
export type NatsOptions = Readonly<z.infer<z.ZodObject<typeof natsFields>>>;

/** Options that need --nats. */
export const natsOptionNames = [
  'natsCa',
  'natsCert',
  'natsKey',
  'natsNkey',
  'natsCreds',
  'natsReplicas',
  'cluster',
] as const;

export function addNatsFlags(command: Command): Command {
  return command
    .optionsGroup(groups.cluster)
    .addOption(
      new Option(
        '--nats <urls>',
        'Connect the processes of a cluster over these NATS servers with JetStream: nats://HOST:PORT or tls://HOST:PORT,...',
      ).env('KVASIR_NATS'),
    )
    .option('--nats-ca <file>', 'Require TLS, and accept NATS servers that these certificates sign (PEM)')
    .option('--nats-cert <file>', 'Require TLS, and present this certificate to NATS servers (PEM)')
    .option('--nats-key <file>', 'The private key of --nats-cert (PEM)')
    .option('--nats-nkey <file>', 'Prove the identity of the nkey in this file to NATS servers')
    .option('--nats-creds <file>', 'Prove the identity of the user in this credentials file to NATS servers')
    .option('--nats-replicas <n>', "Store the cluster's records on this number of NATS servers, 1 to 5 (default: 1)")
    .option('--insecure', 'Accept a NATS server beyond loopback that has no authentication (default: off)')
    .option('--cluster <name>', 'Use the cluster of this name on those NATS servers (default: kvasir)');
}

/** The NATS servers that the options name; undefined: none. @throws UsageError if the options contradict each other */
export function natsServers(options: NatsOptions): NatsServers | undefined {
  const { nats: urls, natsCert: certFile, natsKey: keyFile, natsNkey: nkeyFile, natsCreds: credsFile } = options;
  if (urls === undefined) return undefined;
  if ((certFile === undefined) !== (keyFile === undefined))
    throw new UsageError('Cannot connect to NATS: --nats-cert and --nats-key belong together');
  if (nkeyFile !== undefined && credsFile !== undefined)
    throw new UsageError('Cannot connect to NATS: use --nats-nkey or --nats-creds, not both');
  const { natsCa: caFile, natsReplicas: replicas, insecure } = options;
  return { urls, caFile, certFile, keyFile, nkeyFile, credsFile, insecure, replicas };
}
