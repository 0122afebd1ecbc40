// What commands print about a model or a server: the first request, notes on the configuration, the screen of top.
import { execFileSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { firstRequest } from '../../../src/cli/serve/first-request.ts';
import { clusterViewSchema, topScreen } from '../../../src/cli/serve/host/instance-rows.ts';
import { ssdSizeFor } from '../../../src/cli/serve/instance-tiers.ts';
import { locateCached } from '../../../src/cli/serve/model/locate-model.ts';
import { configurationNotes, unservable } from '../../../src/cli/serve/model/model-facts.ts';
import { describeCluster } from '../../../src/gateway/http/cluster-view.ts';
import { openModel } from '../../../src/weights/open-model.ts';
import { ScriptedPort } from '../../gateway/scripted-port.ts';
import { answering, figuresOf, gatewayOptions, noCluster } from '../../gateway/world.ts';
import { embeddedModel } from '../../text/models.ts';
import { ggufMetadata, tinySpec } from '../../weights/random-model.ts';
import { temporaryFolder } from '../../weights/temporary.ts';
import { writeGguf } from '../../weights/writers.ts';

const folder = temporaryFolder();
const { model } = gatewayOptions(new ScriptedPort(answering('x')));
const { config } = (() => {
  const files = openModel(embeddedModel);
  files.close();
  return files;
})();

describe('the first request of a server', () => {
  const pasted = (line: string, env: Record<string, string> = {}): string[] => {
    const script = `curl() { printf '%s\\0' "$@"; }\n${line}\n`;
    return execFileSync('sh', ['-c', script], { encoding: 'utf8', env, stdio: ['ignore', 'pipe', 'ignore'] })
      .split('\0')
      .slice(0, -1);
  };

  it('has its arguments after a shell read it, for any model id', () => {
    const id = `it's "quoted" $HOME \`x\``;
    const [url, , , , body = ''] = pasted(firstRequest({ ...model, id }, 'http://127.0.0.1:8000', false));
    expect(url).toBe('http://127.0.0.1:8000/v1/chat/completions');
    expect(JSON.parse(body)).toMatchObject({ model: id, messages: [{ role: 'user' }] });
  });

  it('takes the key from the environment, and fails without one', () => {
    const line = firstRequest({ ...model, chatTemplate: undefined }, 'http://127.0.0.1:8000', true);
    expect(pasted(line, { KVASIR_API_KEY: 'k' })).toContain('authorization: Bearer k');
    expect(() => pasted(`${line}`)).toThrow();
  });
});

it('the factors of longrope are named with the context that changes them', () => {
  const divisors = [1, 2];
  const longrope = {
    kind: 'longrope',
    shortDivisors: divisors,
    longDivisors: divisors,
    originalMaxPositions: 4096,
    magnitude: 1,
  } as const;
  const rope = { theta: 1e4, scaling: longrope };
  const positions = { kind: 'rope', rotaryDim: 4, rope, slidingRope: undefined } as const;
  const [long] = configurationNotes({ ...config, positions }, 8192);
  expect(long).toContain('long factors of longrope apply (short up to 4,096 positions; --context 4096 keeps them)');
  expect(configurationNotes({ ...config, positions }, 4096)[0]).toContain('short factors');
  expect(configurationNotes(config, 8192)).toEqual([]);
});

it('the default SSD size follows from the model', () => {
  const small = ssdSizeFor(config, 8192, 'bf16');
  const tokenBytes = 4 * config.layers * config.kvHeads * config.headDim;
  expect(small).toBe(Math.max(64 * 2 ** 20, 64 * 8192 * tokenBytes));
  expect(ssdSizeFor({ ...config, layers: 1000 }, 2 ** 17, 'f32')).toBe(10 * 2 ** 30);
});

describe('models that cannot be served', () => {
  it('are named with the reason', () => {
    const path = folder.write('vocabulary.gguf', writeGguf({ metadata: ggufMetadata(tinySpec), tensors: [] }));
    const problemOf = (model: string): string | undefined => {
      const files = openModel(model);
      files.close();
      return unservable(files);
    };
    expect(problemOf(path)).toBe('cannot be served: it holds a vocabulary without weights');
    expect(problemOf(embeddedModel)).toBeUndefined();
  });

  it('are neither a path nor a name on the hub', () => {
    expect(() => locateCached('nope')).toThrow("No file or folder 'nope'; a hub model is org/name");
  });
});

it('the screen of top fits 80 columns', () => {
  const id = 'a-model-with-a-name-that-is-longer-than-most-others/and-its-variant-of-the-year';
  const port = new ScriptedPort(() => []);
  const view = clusterViewSchema.parse({ ...describeCluster(figuresOf(port, id), port, noCluster) });
  const lines = topScreen({ ...view, instances: [...view.instances, ...view.instances] }, undefined, 80);
  expect(lines.length).toBeGreaterThan(3);
  for (const line of lines) expect(line.length).toBeLessThanOrEqual(80);
  expect(lines.join('\n')).toContain('waiting');
});
