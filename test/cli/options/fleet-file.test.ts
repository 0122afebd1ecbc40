// The fleet file of `kvasir serve --fleet`: short and long forms of engines, and what is refused with its place.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { readFleetFile } from '../../../src/cli/serve/fleet/fleet-file.ts';
import { kubernetesApi } from '../../../src/cli/serve/fleet/kubernetes-api.ts';

const folder = mkdtempSync(join(tmpdir(), 'kvasir-fleet-'));
afterAll(() => rmSync(folder, { recursive: true }));

function read(text: string) {
  const path = join(folder, 'fleet.yaml');
  writeFileSync(path, text);
  return readFleetFile(path);
}

describe('readFleetFile', () => {
  it('reads engines by URL alone, and with kind, key and KV events', () => {
    expect(read('engines: [http://a:1]')).toEqual({ engines: [{ url: 'http://a:1' }], pods: [] });
    const long = `
model: m
engines:
  - { url: 'https://a:1', kind: sglang, api-key: k, kv-events: off }
  - { url: 'http://b:2', kv-events: 'tcp://b:5557' }
  - { url: 'http://b:3', load: 'tcp://b:5559' }
  - { url: 'http://b:4', load: off }
  - { url: 'http://c:3', kv-events: { endpoint: 'tcp://c:5557', replay: 'tcp://c:5657' } }
`;
    expect(read(long)).toEqual({
      model: 'm',
      pods: [],
      engines: [
        { url: 'https://a:1', kind: 'sglang', apiKey: 'k', kvEvents: 'off' },
        { url: 'http://b:2', kvEvents: { endpoint: 'tcp://b:5557', replay: undefined, topic: '' } },
        { url: 'http://b:3', load: { endpoint: 'tcp://b:5559', topic: 'load' } },
        { url: 'http://b:4', load: 'off' },
        { url: 'http://c:3', kvEvents: { endpoint: 'tcp://c:5557', replay: 'tcp://c:5657', topic: '' } },
      ],
    });
  });

  it('reads the other gateways and their key', () => {
    const gateways = { key: '0123456789abcdef', peers: ['http://b:8000'] };
    expect(read(`engines: [http://a:1]\ngateways: ${JSON.stringify(gateways)}`).gateways).toEqual(gateways);
    expect(read('engines: [http://a:1]\ngateways: { key: 0123456789abcdef }').gateways?.peers).toEqual([]);
  });

  it('reads label selectors, of the API that it names or of the pod that it runs in', () => {
    const text = `
kubernetes:
  - { selector: app=vllm, port: http, priority-scheduling: true }
  - { selector: app=sgl, namespace: m, scheme: https, kv-events: off, api: { url: 'http://k:1', token-file: /t } }
`;
    const [own, named] = read(text).pods;
    expect(own).toMatchObject({ selector: 'app=vllm', port: 'http', scheme: 'http', api: undefined });
    expect(own.engine).toEqual({ priorityScheduling: true });
    expect(named).toMatchObject({ namespace: 'm', scheme: 'https', api: { url: 'http://k:1', tokenFile: '/t' } });
    expect(named.engine).toEqual({ kvEvents: 'off' });
    expect(read('kubernetes: { selector: app=vllm }').pods).toHaveLength(1);
    expect(kubernetesApi(named.api, named.namespace)).toEqual({ api: named.api, namespace: 'm' });
    expect(() => kubernetesApi(undefined, 'm', {})).toThrow('this is no pod with a service account');
    writeFileSync(join(folder, 'token'), 't');
    writeFileSync(join(folder, 'namespace'), 'models\n');
    expect(kubernetesApi(undefined, undefined, { KUBERNETES_SERVICE_HOST: 'fd00::1' }, folder)).toEqual({
      api: { url: 'https://[fd00::1]:443', tokenFile: join(folder, 'token'), caFile: join(folder, 'ca.crt') },
      namespace: 'models',
    });
  });

  it.each([
    ['model: m', 'add engines or kubernetes'],
    ['engines: [http://a:1]\ngateways: { key: short }', 'gateways.key: write 16 characters or more'],
    ['engines: [http://a:1]\ngateways: { key: 0123456789abcdef, peers: [a] }', 'gateways.peers[0]: write http'],
    ['kubernetes: { selector: a=b, port: 70000 }', 'kubernetes[0].port: '],
    ['kubernetes: { namespace: m }', 'kubernetes[0].selector: must be text'],
    ['kubernetes: { selector: a=b, labels: a=b }', 'labels'],
    ['engines: []', 'engines'],
    ['engine: [http://a:1]', 'engine'],
    ['engines: [a:1]', 'engines'],
    ['engines: [http://a:1, http://a:1/]', 'http://a:1 is named twice'],
    ['engines: [{ url: http://a:1, kind: other }]', 'kind'],
    ['engines: [', 'Cannot read fleet'],
    ['engines: [http://user:pass@a:1]', 'engines[0]: write http://HOST:PORT, without user'],
    ['engines: [{ url: http://user:pass@a:1 }]', 'engines[0].url: write http://HOST:PORT, without user'],
    ['engines: [{ url: http://a:99999 }]', 'engines[0].url: write http://HOST:PORT'],
    [
      "engines: [{ url: http://a:1, kv-events: { endpoint: 'tcp://*:1' } }]",
      'engines[0].kv-events.endpoint: write tcp',
    ],
    ["engines: [{ url: http://a:1, kv-events: 'tcp://[::1]:1' }]", 'no IPv6 address'],
  ])('refuses %s', (text, reason) => {
    expect(() => read(text)).toThrow(reason);
  });

  it('prints no value of an invalid file', () => {
    const text = 'engines: [{ url: http://a:1, api-key: sekret, kind: sekret }, http://u:sekret@a, { sekret: 1 }]';
    let message = '';
    try {
      read(text);
    } catch (error) {
      message = String(error);
    }
    expect(message).toContain("engines[0].kind: must be 'vllm' or 'sglang'");
    expect(message).not.toContain('sekret');
  });
});
