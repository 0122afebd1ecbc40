// Processes of several roles that lend one another memory: log-probabilities have the bits of one big instance, whether NATS is killed, a process is paused or a link is cut meanwhile.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/kernel/native/native.ts';
import { NatsServer, natsInstalled } from '../../runtime/bus/nats-server.ts';
import { livePrompt } from '../../runtime/threads/instances.ts';
import { metricSum, type RunningProcess, type RunningServer, startInstance, startServer, until } from '../server.ts';
import { health, model } from './cluster.ts';
import { NetworkLink } from './network-link.ts';

/** 64 blocks of 32 tokens of the embedded model: two suffice. */
const kvMemory = String(64 * 32 * 6 * 2 * 2 * 64 * 2);
const context = ['--context', '8192'];
/** A request longer than any of them holds, and one that fits. */
const long = { prompt: livePrompt(1, 1_900), outputs: 600 };
const short = { prompt: livePrompt(2, 1_000), outputs: 700 };

interface Told {
  readonly tokens: readonly string[];
  /** Of each token: its own, and those of the two likeliest. */
  readonly logprobs: readonly unknown[];
  readonly error: string | undefined;
}

/** One completion, from its first token on. */
async function ask(
  gateway: RunningServer,
  { prompt, outputs } = long,
  signal: AbortSignal | null = null,
): Promise<{ readonly answer: Promise<Told> }> {
  const body = { model, prompt, max_tokens: outputs, temperature: 0.8, seed: 3, ignore_eos: true, logprobs: 2 };
  const response = await fetch(`${gateway.url}/v1/completions`, {
    method: 'POST',
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  return { answer: response.text().then(read) };
}

function read(text: string): Told {
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

/** No instance holds, lends or borrows anything. */
async function atRest(gateway: RunningServer): Promise<boolean> {
  const held = ['kv_pages_used', 'lent_blocks', 'borrowed_blocks'].map((name) => `kvasir_instance_${name}`);
  for (const name of held) if ((await metricSum(gateway, name)) !== 0) return false;
  return true;
}

const runs = loadNative() !== undefined && (natsInstalled || process.env.CI !== undefined);

describe.skipIf(!runs)('processes that lend, and what befalls them (needs nats-server)', () => {
  const link = runs ? NetworkLink.open() : undefined;
  const members = new Map<string, RunningProcess>();
  let nats: NatsServer;
  let gateway: RunningServer;
  let expected: Told;
  let expectedShort: Told;
  /** In the order in which the gateway met them, it numbers them. */
  let names: readonly (keyof typeof roles)[] = [];

  const roles = { p: 'prefill', d: 'decode', m: 'mixed' } as const;
  const join = async (name: keyof typeof roles): Promise<void> => {
    const within = name === 'm' ? link : undefined;
    const url = within === undefined ? nats.url : nats.url.replace('127.0.0.1', within.here);
    const pages = within === undefined ? (link?.here ?? '127.0.0.1') : within.there;
    const member = await startInstance(
      [
        ...['--nats', url, '--name', name, '--role', roles[name], '--kv-memory', kvMemory, '--pages-host', pages],
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
    expected = await (await ask(alone)).answer;
    expectedShort = await (await ask(alone, short)).answer;
    await alone.stop();
    nats = await NatsServer.start('-js', '-a', '0.0.0.0');
    gateway = await startServer(['--nats', nats.url, ...context]);
    await Promise.all((['p', 'd', 'm'] as const).map(join));
    await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
    // What it says is read when it comes.
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

  /** Of several the gManager. */
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
  const right = async (answer: Promise<Told>): Promise<void> => {
    expect(await answer).toEqual(expected);
    await until(() => atRest(gateway));
  };

  it('answer with the bits of one big instance, and count what goes over each link', async () => {
    expect([expected.error, expected.tokens.length]).toEqual([undefined, long.outputs]);
    const { answer } = await ask(gateway);
    await right(answer);
    const queries = await metricSum(gateway, 'kvasir_link_queries_total');
    expect(queries).toBeGreaterThan(0);
    expect(queries).toBe(await metricSum(gateway, 'kvasir_instance_guest_queries_total'));
    expect(await metricSum(gateway, 'kvasir_link_moved_bytes_total')).toBeGreaterThan(0);
  });

  /** A request that fits where it runs, of which others have a part all the same. */
  const spreadOut = async (): Promise<{ readonly answer: Promise<Told> }> => {
    for (;;) {
      const { answer } = await ask(gateway, short);
      let ended = false;
      void answer.then(() => {
        ended = true;
      });
      await until(async () => ended || (await metricSum(gateway, 'kvasir_instance_remote_blocks')) > 0);
      if (!ended) return { answer };
    }
  };

  it('call back what they lent for one that needs all of it: what lay there goes home', async () => {
    const calledBack = () => metricSum(gateway, 'kvasir_instance_called_back_blocks_total');
    const before = await calledBack();
    // What is spread out may end before it is called back.
    while ((await calledBack()) === before) {
      const spread = await spreadOut();
      let ended = false;
      const answered = spread.answer.then((answer) => {
        ended = true;
        return answer;
      });
      const gathering = new AbortController();
      const gathered = ask(gateway, long, gathering.signal)
        .then(({ answer }) => answer)
        .catch(() => {});
      await until(async () => ended || (await calledBack()) > before);
      gathering.abort();
      expect(await answered).toEqual(expectedShort);
      await gathered;
      await until(() => atRest(gateway));
    }
  });

  // The gManager's host is one or the other, too.
  it.each(['manager', 'debtor'] as const)('also when a %s is killed and comes back', async (kind) => {
    const { answer } = await ask(gateway);
    const { process, name } = await memberThat(gauges[kind]);
    process.kill('SIGKILL');
    // It has the number and the place that it had.
    await join(name);
    await right(answer);
    await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
  });

  it('also when the NATS server is killed and comes back', async () => {
    const { answer } = await ask(gateway);
    await memberThat(gauges.debtor);
    await nats.kill();
    await nats.start();
    await right(answer);
  });

  it.each(['creditor', 'debtor'] as const)('also when a %s is paused for longer than its leases', async (kind) => {
    const { answer } = await ask(gateway);
    const paused = await memberThat(gauges[kind]);
    paused.process.kill('SIGSTOP');
    await until(async () => (await ready()) === 2);
    const ended = await answer;
    paused.process.kill('SIGCONT');
    await until(async () => (await ready()) === 3);
    expect(ended).toEqual(expected);
    await until(() => atRest(gateway));
  });

  it.skipIf(link === undefined)('also when the link of one of them is cut', async () => {
    const { answer } = await ask(gateway);
    await memberThat(gauges.debtor);
    link?.cut(true);
    const ended = await answer;
    link?.cut(false);
    expect(ended).toEqual(expected);
    await until(async () => (await metricSum(gateway, 'kvasir_instance_gmanager')) === 1);
    await until(() => atRest(gateway));
  });

  it('and have nothing left of what a killed gateway had', async () => {
    const { answer } = await ask(gateway);
    answer.catch(() => {});
    await memberThat(gauges.debtor);
    gateway.process.kill('SIGKILL');
    gateway = await startServer(['--nats', nats.url, ...context]);
    await until(async () => (await ready()) === 3);
    await until(() => atRest(gateway));
    await right((await ask(gateway)).answer);
  });
});
