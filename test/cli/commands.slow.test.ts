// The command line from outside: help, exit codes, one clear line for bad usage, JSON as the last line.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { ggufMetadata, ggufTensors, tinySpec, writeHuggingFaceModel } from '../weights/random-model.ts';
import { writeGguf } from '../weights/writers.ts';
import { type CommandResult, kvasir } from './command.ts';

const command = fileURLToPath(new URL('../../bundle/cli/main.js', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'kvasir-cli-'));
afterAll(() => rmSync(folder, { recursive: true }));

function ownProcess(...args: string[]): CommandResult {
  const { status, stdout, stderr } = spawnSync(process.execPath, [command, ...args], { encoding: 'utf8' });
  return { status: status ?? -1, stdout, stderr };
}

describe('kvasir', () => {
  it.each([
    ['serve'],
    ['join'],
    ['generate'],
    ['chat'],
    ['models'],
    ['models', 'list'],
    ['models', 'inspect'],
    ['graph'],
    ['trace', 'stats'],
    ['bench'],
  ])('%s %s has --help', async (...words) => {
    const { status, stdout } = await kvasir(...words, '--help');
    expect(status).toBe(0);
    expect(stdout).toContain('Usage: kvasir');
  });

  const misuses: readonly (readonly [string, readonly string[], RegExp])[] = [
    ['an unknown command', ['sing'], /unknown command 'sing'/],
    ['an unknown flag', ['serve', '--wings'], /unknown option '--wings'/],
    ['a bad choice', ['serve', '--weights', 'q3'], /--weights/],
    ['a bad number', ['serve', '--port', '99999'], /Cannot use --port 99999/],
    ['an empty number', ['serve', '--threads='], /Cannot use --threads : expected a number/],
    ['an empty key', ['serve', '--api-key', ''], /Cannot use --api-key: a key is empty/],
    ['a bad size', ['serve', '--kv-memory', 'much'], /Cannot use --kv-memory much: 'much' is not a size/],
    ['a capacity of nothing', ['trace', 'stats', 'x', '--capacity', '10,0'], /Cannot use --capacity 10,0/],
    [
      'an unknown model',
      ['simulate', '--trace', 'x', '--model', 'gpt9'],
      /Cannot find gpt9 among models: known are llama2-7b/,
    ],
    ['an unknown fault', ['simulate', '--faults', 'flood:at=1s'], /^Cannot inject flood: there are loss, /],
    [
      'a fraction of several machines',
      ['simulate', '--trace', 'x', '--tp', '12'],
      /Cannot use --tp 12 with --pp 1: an instance beyond one machine must fill whole machines: a800x8 has 8 devices/,
    ],
    ['unsupported precision', ['simulate', '--trace', 'x', '--precision', 'fp8'], /a800x8 has no such arithmetic/],
    ['a division without a value', ['simulate', '--dop'], /^Cannot use --dop without a value: write MODEL,ATTENTION/],
    ['a missing argument', ['generate'], /missing required argument 'prompt'/],
    [
      'too little memory',
      ['serve', '--kv-memory', '1k', '--context', '64'],
      /Cannot use --kv-memory 1024: it holds 0 tokens/,
    ],
    [
      'too long a context',
      ['serve', '--context', '1000000'],
      /Cannot use --context 1000000: the model has 8192 positions/,
    ],
    ['a cluster without a NATS server', ['join'], /^Cannot join a cluster: --nats nats:\/\/HOST:PORT is missing/],
    [
      'a secret that is too short',
      ['join', '--token', 'short'],
      /^Cannot use --token: a token has at least 16 characters/,
    ],
    ['a password', ['join', '--nats', 'x://me:secret@host'], /^Cannot use --nats x:\/\/host: /],
    [
      'a data folder that cannot be created',
      ['serve', '--data', '/proc/x'],
      /^Cannot keep data at \/proc\/x: no folder/,
    ],
    [
      'a server of another protocol',
      ['join', '--nats', 'http://x'],
      /Cannot use --nats http:\/\/x: write nats:\/\/HOST:PORT/,
    ],
    ['a cluster name without NATS', ['serve', '--cluster', 'c'], /Cannot use --cluster: it needs --nats/],
    [
      'a transport of instances of one process',
      ['serve', '--nats', 'nats://127.0.0.1:1', '--instances', '2', '--transport', 'memory'],
      /Cannot use --transport memory with --nats: it is for instances of one process/,
    ],
    [
      'threads for a gateway without instances',
      ['serve', '--nats', 'nats://127.0.0.1:1', '--threads', '2'],
      /Cannot use --threads with --nats: a gateway computes nothing/,
    ],
    ['lending rules without --borrow', ['serve', '--no-settle'], /Cannot use --no-settle: it needs --borrow/],
    [
      'lending rules of an instance without --borrow',
      ['join', '--nats', 'nats://127.0.0.1:1', '--lend-share', '0.4'],
      /Cannot use --lend-share: it needs --borrow/,
    ],
    [
      'inline prefill with mixed instances only',
      ['serve', '--inline-tokens', '40'],
      /Cannot use --inline-tokens: it needs/,
    ],
    [
      'a forecast without predictive admission',
      ['serve', '--td', '3'],
      /Cannot use --td: it needs --admission predictive/,
    ],
    [
      'instances of a fleet',
      ['serve', '--fleet', 'x', '--instances', '2'],
      /^Cannot use --instances with --fleet: its engines compute/,
    ],
    ['a watchdog of a fleet', ['serve', '--fleet', 'x', '--watchdog', '9'], /^Cannot use --watchdog with --fleet/],
    ['a missing config', ['serve', '--config', join(folder, 'none.yaml')], /Cannot read config/],
  ];
  it.each(misuses)('%s: one clear line and exit code 2', async (_name, args, message) => {
    const { status, stderr } = await kvasir(...args);
    expect(status).toBe(2);
    expect(stderr).toMatch(message);
    expect(stderr.trim().split('\n').length).toBeLessThanOrEqual(2);
  });

  it('refuses a folder for blocks that cannot be created', async () => {
    const file = join(folder, 'file');
    writeFileSync(file, '');
    expect(await kvasir('serve', '--ssd', file)).toMatchObject({
      status: 2,
      stderr: `Cannot keep blocks at ${file}: it is not a folder\n`,
    });
  });

  it('reads a config file of the same names; flags take precedence; unknown names are refused', () => {
    const config = join(folder, 'kvasir.yaml');
    writeFileSync(config, 'max-tokens: 3\ntemperature: 0\nseed: 1\n');
    const three = JSON.parse(
      ownProcess('generate', 'Once upon a time', '--raw', '--json', '--config', config).stdout.trim(),
    );
    expect(three).toMatchObject({ outputTokens: 3, finishReason: 'length' });
    const five = JSON.parse(
      ownProcess(
        'generate',
        'Once upon a time',
        '--raw',
        '--json',
        '--config',
        config,
        '--max-tokens',
        '5',
      ).stdout.trim(),
    );
    expect(five.outputTokens).toBe(5);
    expect(five.text.startsWith(three.text)).toBe(true);
    writeFileSync(config, 'wings: 2\n');
    const { status, stderr } = ownProcess('generate', 'x', '--config', config);
    expect(status).toBe(2);
    expect(stderr).toContain("unknown option 'wings'");
  });

  it('fails with one line for a file that is not a model', async () => {
    const path = join(folder, 'noise.gguf');
    writeFileSync(path, 'not a model');
    const { status, stderr } = await kvasir('generate', 'x', '--model', path);
    expect(status).toBe(1);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toContain('noise.gguf');
  });

  it('ends with one line when the weights are unservable after the port is open', () => {
    const path = join(folder, 'holey.gguf');
    const [, ...rest] = ggufTensors(tinySpec, 'f32');
    writeFileSync(path, writeGguf({ metadata: ggufMetadata(tinySpec), tensors: rest }));
    const { status, stderr } = ownProcess('serve', '--port', '0', '--model', path);
    expect(status).toBe(1);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toContain('model.embed_tokens.weight');
  });

  it('ends with one line when the port is taken', async () => {
    const taken = createServer();
    await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve));
    const { port } = taken.address() as AddressInfo;
    const { status, stderr } = ownProcess('serve', '--port', String(port));
    taken.close();
    expect(status).toBe(1);
    expect(stderr.trim()).toMatch(new RegExp(`^Cannot listen on 127.0.0.1:${port}: .*EADDRINUSE`));
  });

  it('simulates an experiment of a file; flags take precedence', async () => {
    const flags = ['--requests', '20', '--check', '--json'];
    const simulate = async (...more: string[]) =>
      JSON.parse((await kvasir('simulate', 'experiments/disaggregation.yaml', ...flags, ...more)).stdout);
    const disaggregated = await simulate();
    expect(disaggregated).toMatchObject({
      requests: 20,
      completed: 20,
      withinSlo: 20,
      refused: { atPrefill: 0, atDecode: 0 },
    });
    // 32,768 tokens of 80 layers' keys and values for 8 heads of 128, 2 bytes each.
    expect(disaggregated.bytesMoved.handoff).toBe(20 * 32_768 * 80 * 2 * 8 * 128 * 2);
    const coupled = await simulate('--prefill', '0', '--decode', '0', '--mixed', '4');
    expect(coupled).toMatchObject({ completed: 20, bytesMoved: { handoff: 0 } });
    expect(coupled.tbtMs.p99).toBeGreaterThan(2 * disaggregated.tbtMs.p99);
  });

  it('fails when chaos missed a fault or a handler; one seed is a replay', () => {
    const chaos = (seeds: string) => {
      const { status, stdout } = ownProcess('simulate', '--chaos', '--seeds', seeds, '--seed', '8', '--json');
      return { status, report: JSON.parse(stdout.trim().split('\n').at(-1) ?? '') };
    };
    expect(chaos('1').status).toBe(0);
    const two = chaos('2');
    expect(two.report.requests.never.length).toBeGreaterThan(0);
    expect(two.status).toBe(1);
  });

  it('simulates a trace', async () => {
    const path = join(folder, 'small.jsonl');
    const line = (i: number) => ({ timestamp: 100 * i, input_length: 600, output_length: 20, hash_ids: [0, i + 1] });
    writeFileSync(path, Array.from({ length: 40 }, (_, i) => JSON.stringify(line(i))).join('\n'));
    const flags = ['simulate', '--trace', path, '--mixed', '2', '--check', '--speed', '2', '--json'];
    const report = JSON.parse((await kvasir(...flags)).stdout);
    expect(report).toMatchObject({
      requests: 40,
      completed: 40,
      refused: { atPrefill: 0, atDecode: 0 },
      decodeTokens: 800,
    });
    expect(report.hitRatioTokens).toBeCloseTo((38 * 512) / (40 * 600), 10);
    expect(JSON.parse((await kvasir(...flags, '--no-coalesce')).stdout).stateHash).toBe(report.stateHash);
  });

  it.each([
    ['no file', 'nowhere.jsonl', undefined, /^Cannot read .*nowhere.jsonl: ENOENT/],
    [
      'a bad line',
      'bad.jsonl',
      '{"timestamp":0,"input_length":"5"}',
      /bad.jsonl: line 1: input_length is "5": a whole/,
    ],
    [
      'a broken archive',
      'bad.jsonl.gz',
      Buffer.from('1f8b0800ffff', 'hex'),
      /^Cannot read .*bad.jsonl.gz: unexpected end/,
    ],
  ])('reports an unreadable trace in one line: %s', async (_, name, content, message) => {
    const path = join(folder, name);
    if (content !== undefined) writeFileSync(path, content);
    const { status, stdout, stderr } = await kvasir('trace', 'stats', path);
    expect([status, stdout]).toEqual([1, '']);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toMatch(message);
  });

  it('ends quietly when its reader closes the output', async () => {
    const child = spawn(process.execPath, [command, 'generate', 'Once upon a time', '--raw', '--seed', '1'], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let stderr = '';
    child.stderr.on('data', (chunk: Buffer) => {
      stderr += chunk.toString();
    });
    child.stdout.once('data', () => child.stdout.destroy());
    const status = await new Promise((resolve) => child.once('close', resolve));
    expect([status, stderr]).toEqual([0, '']);
  });

  it('ends with one line when the tokenizer cannot be built', () => {
    const model = join(folder, 'mute');
    writeHuggingFaceModel(model, tinySpec, 'bf16');
    writeFileSync(join(model, 'tokenizer.json'), '{"oops"');
    const { status, stderr } = ownProcess('serve', '--port', '0', '--model', model);
    expect(status).toBe(1);
    expect(stderr).toContain('tokenizer.json');
    expect(stderr.trim().split('\n')).toHaveLength(1);
  });

  it('lists and inspects models', async () => {
    const { models } = JSON.parse((await kvasir('models', 'list', '--json')).stdout);
    expect(models).toContainEqual(expect.objectContaining({ architecture: 'llama', context: 8192 }));
    const report = JSON.parse((await kvasir('models', 'inspect', models[0].path, '--json')).stdout);
    expect(report.config).toMatchObject({ layers: 6, hiddenSize: 256, vocabSize: 4096 });
    expect(report.tensors).toContainEqual({ name: 'model.norm.weight', type: 'f32', shape: [256] });
  });
});
