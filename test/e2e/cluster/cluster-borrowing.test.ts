// Processes of several roles that lend memory to one another, and send rows to keys or keys to rows: log-probabilities have the bits of one large instance, also if NATS is killed, a process is paused or a link is cut.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { livePrompt } from '../../runtime/threads/instances.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { health, model } from './cluster.ts';
import { NetworkLink } from './network-link.ts';

/** 32 blocks of 32 tokens of the embedded model: two suffice. */
const kvMemory = String(32 * 32 * 6 * 2 * 2 * 64 * 2);
const context = ['--context', '8192'];
/** A request larger than any instance, and one that fits. */
const long = { prompt: livePrompt(1, 950), outputs: 200 };
const short = { prompt: livePrompt(2, 500), outputs: 350 };

interface Output {
  readonly tokens: readonly string[];
  /** For each token: its own, and those of the two likeliest. */
  readonly logprobs: readonly unknown[];
  readonly error: string | undefined;
}

/** Starts a completion; resolves with its first token. */
async function start(
  gateway: RunningServer,
  { prompt, outputs } = long,
  signal: AbortSignal | null = null,
): Promise<{ readonly answer: Promise<Output> }> {
  const body = { model, prompt, max_tokens: outputs, temperature: 0.8, seed: 3, ignore_eos: true, logprobs: 2 };
  const response = await fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  return { answer: response.text().then(read) };
}

function read(text: string): Output {
  const chunks = text.split('\n').flatMap((line) => (line.startsWith('data: {') ? [JSON.parse(line.slice(6))] : []));
  const logprobs = chunks.flatMap((chunk) => chunk.choices?.[0]?.logprobs ?? []);
  return {
    tokens: logprobs.flatMap((each) => each.tokens),
    logprobs: logprobs.flatMap((each) => [each.token_logprobs, each.top_logprobs]).flat(),
    error: chunks.find((chunk) => chunk.error !== undefined)?.error.message,
  };
}

const gauges = {
  creditor: 'kvasir_instance_lent_blocks',
  debtor: 'kvasir_instance_borrowed_blocks',
  manager: 'kvasir_instance_gmanager',
};

async function ofInstances(gateway: RunningServer, name: string): Promise<readonly number[]> {
  const text = await (await fetch(`${gateway.url}/metrics`)).text();
  const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`));
  return lines.map((line) => Number(line.slice(line.lastIndexOf(' ') + 1)));
}

/** True if no instance holds, lends or borrows blocks. */
async function isIdle(gateway: RunningServer): Promise<boolean> {
  const held = ['kv_pages_used', 'lent_blocks', 'borrowed_blocks'].map((name) => `kvasir_instance_${name}`);
  for (const name of held) if ((await metricSum(gateway, name)) !== 0) return false;
  return true;
}

const runs = loadNative() !== undefined && (natsInstalled || process.env.CI !== undefined);

describe.skipIf(!runs)('processes that lend, under failures (needs nats-server)', () => {
  const link = runs ? NetworkLink.open() : undefined;
  const members = new Map<string, RunningProcess>();
  let nats: NatsServer;
  let gateway: RunningServer;
  let expected: Output;
  let expectedShort: Output;
  /** In the order in which they joined, which is the gateway's numbering. */
  let names: readonly (keyof typeof roles)[] = [];

  const roles = { p: 'prefill', d: 'decode', m: 'mixed' } as const;
  const join = async (name: keyof typeof roles): Promise<void> => {
    const within = name === 'm' ? link : undefined;
    const url = within === undefined ? nats.url : nats.url.replace('127.0.0.1', within.here);
    const pages = within === undefined ? (link?.here ?? '127.0.0.1') : within.there;
    const member = await startInstance(
      [
        ...[
          '--nats',
          url,
          '--name',
          name,
          '--role',
          roles[name],
          '--kv-memory',
          kvMemory,
          '--pages-host',
          pages,
          '--insecure',
        ],
        ...[
          '--borrow',
          '--lend-share',
          '0.9',
          '--low-water',
          '0.4',
          '--lease-ms',
          '3000',
          '--spread-ms',
          '300',
          ...(name === 'p' ? [] : ['--remote-attention', 'ring']),
          ...context,
        ],
      ],
      within?.within,
    );
    members.set(name, member);
  };

  beforeAll(async () => {
    const alone = await startServer([
      '--threads',
      '1',
      '--model',
      'models/kvasir-tiny/kvasir-tiny-q8_0.gguf',
      ...context,
    ]);
    expected = await (await start(alone)).answer;
    expectedShort = await (await start(alone, short)).answer;
    await alone.stop();
    nats = await NatsServer.start('-js', '-a', '0.0.0.0');
    gateway = await startServer(['--nats', nats.url, ...context]);
    // Ties go to the first instance: if it is the decode instance, no request needs blocks that are lent.
    for (const name of ['p', 'd', 'm'] as const) await join(name);
    await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
    // Output of the gateway arrives after the metrics.
    const joined = () => [...gateway.output().matchAll(/Instance ([pdm]) has joined/g)];
    await until(async () => joined().length === 3);
    names = joined().map(([, name]) => name as 'p' | 'd' | 'm');
  });
  afterAll(async () => {
    for (const { process } of members.values()) process.kill('SIGKILL');
    gateway?.process.kill('SIGKILL');
    await nats?.stop();
    link?.close();
  });

  /** A member with a positive gauge; of several, the gManager. */
  const memberThat = async (gauge: string): Promise<RunningProcess & { readonly name: keyof typeof roles }> => {
    let at = -1;
    await until(async () => {
      const figures = await ofInstances(gateway, gauge);
      const manager = (await ofInstances(gateway, gauges.manager)).indexOf(1);
      at = (figures[manager] ?? 0) > 0 ? manager : figures.findIndex((figure) => figure > 0);
      return at >= 0;
    });
    const name = names[at];
    const member = name && members.get(name);
    if (member === undefined) throw new Error(`No instance is ${at}: ${names}`);
    return { ...member, name };
  };
  const ready = () => health(gateway);
  const expectAnswer = async (answer: Promise<Output>): Promise<void> => {
    expect(await answer).toEqual(expected);
    await until(() => isIdle(gateway));
  };

  it('answer with the bits of one large instance, and count the bytes of each link', async () => {
    expect([expected.error, expected.tokens.length]).toEqual([undefined, long.outputs]);
    const { answer } = await start(gateway);
    await expectAnswer(answer);
    const queries = await metricSum(gateway, 'kvasir_link_queries_total');
    expect(queries).toBeGreaterThan(0);
    expect(queries).toBe(await metricSum(gateway, 'kvasir_instance_guest_queries_total'));
    expect(await metricSum(gateway, 'kvasir_link_moved_bytes_total')).toBeGreaterThan(0);
    await until(async () => (await metricSum(gateway, 'kvasir_instance_remote_key_bytes_total')) > 0);
  });

  /** A request that fits its instance, while creditors hold a part of its blocks. */
  const startSpread = async (): Promise<{ readonly answer: Promise<Output> }> => {
    for (;;) {
      const { answer } = await start(gateway, short);
      let ended = false;
      void answer.then(() => {
        ended = true;
      });
      await until(async () => ended || (await metricSum(gateway, 'kvasir_instance_remote_blocks')) > 0);
      if (!ended) return { answer };
    }
  };

  it('recall their loans for a request that requires all memory: the blocks return home', async () => {
    const recalledBlocks = () => metricSum(gateway, 'kvasir_instance_called_back_blocks_total');
    const before = await recalledBlocks();
    // The request may end before its blocks are recalled.
    while ((await recalledBlocks()) === before) {
      const spread = await startSpread();
      let ended = false;
      const answered = spread.answer.then((answer) => {
        ended = true;
        return answer;
      });
      const reserving = new AbortController();
      const reserved = start(gateway, long, reserving.signal)
        .then(({ answer }) => answer)
        .catch(() => {});
      await until(async () => ended || (await recalledBlocks()) > before);
      reserving.abort();
      expect(await answered).toEqual(expectedShort);
      await reserved;
      await until(() => isIdle(gateway));
    }
  });

  // One of them runs the gManager too.
  it.each(['manager', 'debtor'] as const)('give the same answer when a %s is killed and restarts', async (kind) => {
    const { answer } = await start(gateway);
    const { process, name } = await memberThat(gauges[kind]);
    process.kill('SIGKILL');
    // It keeps its lender number and its index at the gateway.
    await join(name);
    await expectAnswer(answer);
    await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
  });

  it('give the same answer when the NATS server is killed and restarts', async () => {
    const { answer } = await start(gateway);
    await memberThat(gauges.debtor);
    await nats.kill();
    await nats.start();
    await expectAnswer(answer);
  });

  it.each(['creditor', 'debtor'] as const)(
    'give the same answer when a %s is paused for longer than its leases',
    async (kind) => {
      const { answer } = await start(gateway);
      const paused = await memberThat(gauges[kind]);
      paused.process.kill('SIGSTOP');
      await until(async () => (await ready()) === 2);
      const ended = await answer;
      paused.process.kill('SIGCONT');
      await until(async () => (await ready()) === 3);
      expect(ended).toEqual(expected);
      await until(() => isIdle(gateway));
    },
  );

  it.skipIf(link === undefined)('give the same answer when the link of one of them is cut', async () => {
    const { answer } = await start(gateway);
    await memberThat(gauges.debtor);
    link?.cut(true);
    const ended = await answer;
    link?.cut(false);
    expect(ended).toEqual(expected);
    await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
    await until(() => isIdle(gateway));
  });

  it('release all memory of the requests of a killed gateway', async () => {
    const { answer } = await start(gateway);
    answer.catch(() => {});
    await memberThat(gauges.debtor);
    gateway.process.kill('SIGKILL');
    gateway = await startServer(['--nats', nats.url, ...context]);
    await until(async () => (await ready()) === 3);
    await until(() => isIdle(gateway));
    await expectAnswer((await start(gateway)).answer);
  });
});
