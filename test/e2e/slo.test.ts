// SLOs: classes by header and body, refusals with figures, inline prefill, and role switches under load.
import { afterEach, describe, expect, it } from 'vitest';
import { type RunningServer, startServer } from './server.ts';

const open: RunningServer[] = [];
afterEach(() => Promise.all(open.splice(0).map((server) => server.stop())));

async function start(flags: readonly string[]): Promise<RunningServer> {
  const server = await startServer(['--threads', '2', '--kv-memory', '32m', '--context', '512', ...flags]);
  open.push(server);
  return server;
}

function complete(server: RunningServer, body: object, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model: 'kvasir-tiny-q8_0', max_tokens: 4, temperature: 0, ignore_eos: true, ...body }),
  });
}

interface RequestTraces {
  readonly choices: readonly {
    readonly state: string;
    readonly slo_class: string | null;
    readonly priority: number;
    readonly failure: { readonly refusal: { readonly at: string; readonly reason: string } } | null;
    readonly tbt_ms: { readonly predicted: number | null };
    readonly placements: readonly {
      readonly instance: number;
      readonly decode_at: number | null;
      readonly inline: boolean;
    }[];
  }[];
}

async function traceOf(server: RunningServer, response: Response): Promise<RequestTraces['choices'][number]> {
  const id = response.headers.get('x-request-id') ?? '';
  const traces = (await (await fetch(`${server.url}/api/requests/${id}`)).json()) as RequestTraces;
  return traces.choices[0];
}

const promptOf = (kind: number, length: number) => Array.from({ length }, (_, i) => 5 + ((kind * 37 + i * 11) % 400));

describe('SLO classes', () => {
  it('are selected by header or body, and refuse late requests with figures', async () => {
    const server = await start([
      ...['--slo-classes', 'chat=60s/10s,never=0.001ms/0.001ms,report=600s'],
      ...['--admission', 'early'],
    ]);
    const chat = await complete(server, { prompt: promptOf(1, 40) }, { 'x-kvasir-slo': 'chat' });
    expect(chat.status).toBe(200);
    expect(await traceOf(server, chat)).toMatchObject({
      ...{ state: 'finished', slo_class: 'chat' },
      tbt_ms: { predicted: expect.any(Number) },
    });
    const refused = await complete(server, { prompt: promptOf(2, 40), slo_class: 'never' });
    expect(refused.status).toBe(429);
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    const { error } = (await refused.json()) as { error: { message: string; refusal: object } };
    expect(error.refusal).toMatchObject({ at: 'prefill', predicted_ms: expect.any(Number), most_ms: 0.001 });
    expect(error.message).toMatch(/^Cannot admit request: predicted (TTFT|TBT) \d+ ms exceeds \d+ ms/);
    expect(await traceOf(server, refused)).toMatchObject({ state: 'refused', failure: { refusal: { at: 'prefill' } } });
    expect((await complete(server, { prompt: promptOf(3, 40), slo_class: 'report' })).status).toBe(200);
    expect((await complete(server, { prompt: promptOf(4, 40) })).status).toBe(200);
  });

  it('that are unknown or contradict each other are a 400 that names the field', async () => {
    const server = await start(['--slo-classes', 'chat=60s/10s']);
    const answers = await Promise.all([
      complete(server, { prompt: [5], slo_class: 'other' }),
      complete(server, { prompt: [5] }, { 'x-kvasir-slo': 'other' }),
      complete(server, { prompt: [5], slo_class: 'chat' }, { 'x-kvasir-slo': 'other' }),
      complete(server, { prompt: [5], slo_class: 7 }),
    ]);
    const errors = await Promise.all(answers.map(async (answer) => ((await answer.json()) as { error: object }).error));
    expect(answers.map(({ status }) => status)).toEqual([400, 400, 400, 400]);
    expect(errors).toMatchObject(
      ['slo_class', 'x-kvasir-slo', 'slo_class', 'slo_class'].map((param) => ({ param, code: 'invalid_value' })),
    );
  });
});

describe('prefill and decode instances', () => {
  it('prefill short prompts on their decode instance', async () => {
    const server = await start(['--config', 'test/e2e/apart.yaml', '--inline-tokens', '40']);
    const short = await traceOf(server, await complete(server, { prompt: promptOf(1, 30) }));
    const long = await traceOf(server, await complete(server, { prompt: promptOf(2, 200) }));
    expect(short.placements).toMatchObject([{ instance: 1, decode_at: null, inline: true }]);
    expect(long.placements).toMatchObject([{ instance: 0, decode_at: 1, inline: false }]);
  });

  it('change roles under load, and no request fails', async () => {
    const server = await start(['--config', 'test/e2e/apart.yaml']);
    const role = (instance: number, to: string) =>
      fetch(`${server.url}/api/instances/${instance}/role`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ role: to }),
      });
    const texts = (answers: readonly Response[]) =>
      Promise.all(
        answers.map(async (answer) => ((await answer.json()) as { choices: { text: string }[] }).choices[0]?.text),
      );
    const answerTo = (i: number) => complete(server, { prompt: promptOf(i, 60 + 9 * i), max_tokens: 24 });
    const kinds = Array.from({ length: 8 }, (_, i) => i);
    const expected = await texts(await Promise.all(kinds.map(answerTo)));
    const first = kinds.map(answerTo);
    // No instance would be left to decode.
    expect((await role(1, 'prefill')).status).toBe(409);
    expect((await role(2, 'decode')).status).toBe(200);
    expect((await role(1, 'prefill')).status).toBe(200);
    const second = kinds.map(answerTo);
    expect((await role(0, 'decode')).status).toBe(200);
    const third = kinds.map(answerTo);
    const answers = await Promise.all([...first, ...second, ...third]);
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
    const later = await traceOf(server, answers.at(-1) ?? answers[0]);
    expect(later.placements[0]).toMatchObject({ instance: 1 });
    expect(await texts(answers)).toEqual([...expected, ...expected, ...expected]);
    const wrong = await Promise.all([role(9, 'decode'), role(0, 'store'), role(0, 'decode')]);
    expect(wrong.map(({ status }) => status)).toEqual([404, 400, 200]);
  });

  it('refuse received prompts that would miss their decode SLO', async () => {
    const server = await start([
      ...['--config', 'test/e2e/apart.yaml', '--admission', 'stage', '--slo-classes', 'never=60s/0.001ms'],
    ]);
    const refused = await complete(server, { prompt: promptOf(2, 200), slo_class: 'never' });
    expect(refused.status).toBe(429);
    expect(await traceOf(server, refused)).toMatchObject({
      ...{ state: 'refused', failure: { refusal: { at: 'decode', reason: 'tbt' } } },
    });
  });
});
