// Connections to NATS servers: TLS, certificates, nkeys, credentials files, several servers, and servers without authentication.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { nkeys } from '@nats-io/transport-node';
import { afterAll, describe, expect, test } from 'vitest';
import { connectNats } from '../../../src/runtime/bus/nats-bus.ts';
import {
  addressTowards,
  connectionOptions,
  isLoopbackAddress,
  type NatsServers,
  redacted,
} from '../../../src/runtime/bus/nats-connection.ts';
import { NatsServer, natsInstalled } from './nats-server.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-nats-files-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const fileOf = (name: string, text: string): string => {
  writeFileSync(join(folder, name), text);
  return join(folder, name);
};

test('credentials of the URLs are passed apart from them, and errors omit them', () => {
  expect(connectionOptions({ urls: 'nats://a:1,nats://secret@b:2' })).toEqual({
    servers: ['nats://a:1', 'nats://b:2'],
    token: 'secret',
  });
  expect(connectionOptions({ urls: 'nats://me:p%40ss@a:1' })).toMatchObject({ user: 'me', pass: 'p@ss' });
  expect(() => connectionOptions({ urls: 'nats://one@a:1,nats://other@b:2' })).toThrow(
    'Cannot connect to NATS at nats://a:1,nats://b:2: the URLs have different credentials',
  );
  expect(redacted('nats://me:secret@a:1,tls://token@b:2')).toBe('nats://a:1,tls://b:2');
});

test('one tls URL, a CA or a client certificate requires TLS of all servers', () => {
  const tlsOf = (servers: Omit<NatsServers, 'urls'>, urls = 'nats://a:1') =>
    connectionOptions({ urls, ...servers }).tls;
  expect(tlsOf({})).toBeUndefined();
  expect(tlsOf({}, 'nats://a:1,tls://b:2')).toBeDefined();
  expect(tlsOf({ caFile: fileOf('some.pem', 'a CA') })).toMatchObject({ ca: 'a CA' });
  expect(() => tlsOf({ caFile: join(folder, 'absent') })).toThrow(/^Cannot connect to NATS: ENOENT/);
});

test('a credentials file and an nkey file prove the identity of a user', () => {
  const user = nkeys.createUser();
  const seed = new TextDecoder().decode(user.getSeed());
  const credsFile = fileOf(
    'user.creds',
    `-----BEGIN NATS USER JWT-----\nhead.body.mark\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n${seed}\n------END USER NKEY SEED------\n`,
  );
  const nkeyFile = fileOf('user.nk', `# The gateway\n${seed}\n`);
  const answerOf = (servers: Omit<NatsServers, 'urls'>) => {
    const { authenticator } = connectionOptions({ urls: 'nats://a:1', ...servers });
    return typeof authenticator === 'function' ? authenticator('nonce') : undefined;
  };
  expect(answerOf({ nkeyFile })).toMatchObject({ nkey: user.getPublicKey() });
  expect(answerOf({ credsFile })).toMatchObject({ jwt: 'head.body.mark', nkey: user.getPublicKey() });
});

test('loopback addresses are told from others', () => {
  expect(['127.0.0.1', '127.9.9.9', '::1'].every(isLoopbackAddress)).toBe(true);
  expect(['10.0.0.1', '0.0.0.0', '::', 'fd00::1', 'localhost'].some(isLoopbackAddress)).toBe(false);
});

test('the address towards the servers is loopback for servers of this host', async () => {
  expect(await addressTowards('nats://127.0.0.1:4222')).toBe('127.0.0.1');
  expect(await addressTowards('tls://token@[::1]:4222').catch(() => '::1')).toBe('::1');
});

const outer = Object.values(networkInterfaces())
  .flat()
  .find((each) => each !== undefined && each.family === 'IPv4' && !each.internal)?.address;

describe.skipIf(!natsInstalled && process.env.CI === undefined)('nats-server', () => {
  const closing = async (servers: NatsServers): Promise<void> => (await connectNats(servers, 'c')).close();

  test.skipIf(outer === undefined)(
    'a server without authentication beyond loopback is refused, unless the operator accepts it',
    async () => {
      const open = await NatsServer.start('-js', '-a', '0.0.0.0');
      const closed = await NatsServer.start('-js', '-a', '0.0.0.0', '--auth', 'secret');
      const at = ({ url }: NatsServer, secret = '') => url.replace('127.0.0.1', `${secret}${outer}`);
      await expect(closing({ urls: at(open) })).rejects.toThrow(
        `Cannot use NATS at ${at(open)}: it accepts clients without authentication`,
      );
      // A secret that no server checks is none.
      await expect(closing({ urls: at(open, 'secret@') })).rejects.toThrow('without authentication');
      await closing({ urls: at(open), insecure: true });
      await closing({ urls: at(closed, 'secret@') });
      await closing({ urls: open.url });
      expect(await addressTowards(at(open))).toBe(outer);
      await Promise.all([open.stop(), closed.stop()]);
    },
  );

  test('a plaintext server is refused for tls, and the next of several servers is used when one is down', async () => {
    const server = await NatsServer.start('-js');
    const tls = server.url.replace('nats:', 'tls:');
    await expect(closing({ urls: tls })).rejects.toThrow(`Cannot connect to NATS at ${tls}: server does not support`);
    await closing({ urls: `nats://127.0.0.1:1,${server.url}` });
    for (const cluster of ['c', 'three'])
      await expect(connectNats({ urls: server.url, replicas: 3 }, cluster)).rejects.toThrow(
        /Cannot keep records .*replicas/,
      );
    await server.stop();
  });

  test('certificates and nkeys are checked by both sides', async () => {
    const [caKey, ca, key, request, cert] = ['ca.key', 'ca.pem', 'own.key', 'own.csr', 'own.pem'].map((name) =>
      join(folder, name),
    );
    const names = fileOf('names', 'subjectAltName=IP:127.0.0.1');
    const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
    for (const args of [
      ['req', '-x509', ...curve, '-subj', '/CN=test CA', '-keyout', caKey, '-out', ca],
      ['req', ...curve, '-subj', '/CN=server', '-keyout', key, '-out', request],
      ['x509', '-req', '-in', request, '-CA', ca, '-CAkey', caKey, '-CAcreateserial', '-extfile', names, '-out', cert],
    ]) {
      const { status, stderr } = spawnSync('openssl', args, { encoding: 'utf8' });
      if (status !== 0) throw new Error(stderr);
    }
    const user = nkeys.createUser();
    const nkeyFile = fileOf('gateway.nk', new TextDecoder().decode(user.getSeed()));
    const config = fileOf(
      'nats.conf',
      `tls { cert_file: "${cert}", key_file: "${key}", ca_file: "${ca}", verify: true }
      authorization { users = [ { nkey: ${user.getPublicKey()} } ] }`,
    );
    const server = await NatsServer.start('-js', '-c', config);
    const own = { urls: server.url.replace('nats:', 'tls:'), caFile: ca, certFile: cert, keyFile: key, nkeyFile };
    await closing(own);
    await expect(closing({ ...own, caFile: undefined })).rejects.toThrow(/certificate/);
    await expect(closing({ ...own, nkeyFile: undefined })).rejects.toThrow(/Authorization Violation/i);
    // The certificate is for 127.0.0.1 alone.
    await expect(closing({ ...own, urls: own.urls.replace('127.0.0.1', 'localhost') })).rejects.toThrow(/altname/i);
    await server.stop();
  });
});
