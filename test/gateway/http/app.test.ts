// The responses of the gateway, field by field, over a scripted inference port.
import { describe, expect, it } from 'vitest';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { bytesOf } from '../openai/byte-tokenizer.ts';
import { accepted, finished, type Script, ScriptedPort, scriptedLogprobs, started, tokens } from '../scripted-port.ts';
import { answering, chat, events, gateway, gatewayOptions } from '../world.ts';

/** The fields of a response that the tests read. */
interface Answer {
  readonly choices: readonly {
    readonly index: number;
    readonly text: string;
    readonly message: { readonly content: string };
    readonly finish_reason: string;
    readonly token_ids: readonly number[];
    readonly logprobs: { readonly content: readonly { readonly token: string }[] };
  }[];
  readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number };
  readonly prompt_token_ids: readonly number[];
  readonly error: { readonly message: string };
}

async function json(response: Response | Promise<Response>): Promise<Answer> {
  return (await (await response).json()) as Answer;
}

describe('chat completions', () => {
  it('returns content, finish reason and usage', async () => {
    const { post, port } = gateway(answering('hello'));
    const answer = await json(post('/v1/chat/completions', chat));
    expect(answer).toMatchObject({
      object: 'chat.completion',
      model: 'bytes',
      choices: [
        { index: 0, message: { role: 'assistant', content: 'hello' }, finish_reason: 'length', logprobs: null },
      ],
      usage: { prompt_tokens: 18, completion_tokens: 5, total_tokens: 23, prompt_tokens_details: { cached_tokens: 2 } },
    });
    expect(port.requests[0]?.prompt).toEqual(Int32Array.from(bytesOf('user:hi;assistant:')));
    expect(port.requests[0]?.maxTokens).toBe(100 - 18);
    expect(port.requests[0]?.stopTokenIds).toEqual([256]);
  });

  it('streams a role, then text, a reason, usage and DONE', async () => {
    const { post } = gateway(answering('hé'));
    const body = { ...chat, stream: true, stream_options: { include_usage: true } };
    const stream = await events(await post('/v1/chat/completions', body));
    const deltas = stream
      .slice(0, -2)
      .map((event) => (event as { choices: { delta: object; finish_reason: string | null }[] }).choices[0]);
    expect(deltas.map((choice) => choice?.delta)).toEqual([
      { role: 'assistant', content: '' },
      { content: 'h' },
      { content: 'é' },
      {},
    ]);
    expect(deltas.at(-1)?.finish_reason).toBe('length');
    expect(stream.at(-2)).toMatchObject({ choices: [], usage: { completion_tokens: 3 } });
    expect(stream.at(-1)).toBe('done');
  });

  it('ends at a stop string, sends no part of it and cancels the rest', async () => {
    const { post, port } = gateway(answering('one END two'));
    const answer = await json(post('/v1/chat/completions', { ...chat, stop: ['END', 'never'] }));
    expect(answer.choices[0]?.message.content).toBe('one ');
    expect(answer.choices[0]?.finish_reason).toBe('stop');
    expect(answer.usage.completion_tokens).toBe(7);
    expect(port.cancelled).toHaveLength(1);
  });

  it('names tokens of log-probabilities with bytes, or by token id', async () => {
    const script: Script = () => [
      accepted,
      started(0),
      tokens([104, 105], scriptedLogprobs([104, 105], 2)),
      finished('stop'),
    ];
    const { post, port } = gateway(script);
    const plain = await json(post('/v1/chat/completions', { ...chat, logprobs: true, top_logprobs: 2 }));
    expect(plain.choices[0]?.logprobs.content[1]).toEqual({
      token: 'i',
      logprob: -2,
      bytes: [105],
      top_logprobs: [
        { token: '\0', logprob: -0.5, bytes: [0] },
        { token: '\x01', logprob: -1.5, bytes: [1] },
      ],
    });
    expect(port.requests[0]?.sampling.topLogprobs).toBe(2);
    const body = { ...chat, logprobs: true, return_tokens_as_token_ids: true, return_token_ids: true };
    const ids = await json(post('/v1/chat/completions', body));
    expect(ids.choices[0]?.logprobs.content[0].token).toBe('token_id:104');
    expect(ids.choices[0]?.token_ids).toEqual([104, 105]);
    expect(ids.prompt_token_ids).toEqual(bytesOf('user:hi;assistant:'));
  });

  it('runs n choices with seeds of their own', async () => {
    const { post, port } = gateway(answering('x'));
    const answer = await json(post('/v1/chat/completions', { ...chat, n: 3, seed: 5 }));
    expect(answer.choices.map((choice) => choice.index)).toEqual([0, 1, 2]);
    expect(answer.usage.completion_tokens).toBe(3);
    expect(answer.usage.prompt_tokens).toBe(18);
    expect(new Set(port.requests.map((request) => request.sampling.seed.join())).size).toBe(3);
  });

  it('accepts parts of text and the developer role', async () => {
    const { post, port } = gateway(answering('x'));
    const messages = [
      { role: 'developer', content: [{ type: 'text', text: 'be brief' }] },
      { role: 'user', content: 'hi' },
    ];
    await post('/v1/chat/completions', { ...chat, messages });
    expect(port.requests[0]?.prompt).toEqual(Int32Array.from(bytesOf('system:be brief;user:hi;assistant:')));
  });
});

describe('completions', () => {
  it('returns n choices for each prompt of a list, in order', async () => {
    const { post, port } = gateway(answering('ab'));
    const answer = await json(post('/v1/completions', { model: 'bytes', prompt: ['p', 'q'], n: 2 }));
    expect(answer.choices.map((choice) => [choice.index, choice.text])).toEqual([
      [0, 'ab'],
      [1, 'ab'],
      [2, 'ab'],
      [3, 'ab'],
    ]);
    expect(port.requests.map((request) => String.fromCharCode(request.prompt[0] ?? 0)).join('')).toBe('ppqq');
    expect(port.requests[0]?.maxTokens).toBe(16);
    expect(answer.usage).toMatchObject({ prompt_tokens: 2, completion_tokens: 8 });
  });

  it('accepts token ids, one list or several', async () => {
    const { post, port } = gateway(answering('a'));
    await post('/v1/completions', { model: 'bytes', prompt: [1, 2, 3] });
    await post('/v1/completions', { model: 'bytes', prompt: [[4], [5, 6]] });
    expect(port.requests.map((request) => [...request.prompt])).toEqual([[1, 2, 3], [4], [5, 6]]);
  });

  it('echoes the prompt with its log-probabilities', async () => {
    const script: Script = ({ sampling, maxTokens }) => [
      accepted,
      started(0),
      ...(sampling.promptLogprobs
        ? [{ kind: 'prompt-logprobs', logprobs: scriptedLogprobs([98, 99], 1) } as const]
        : []),
      ...(maxTokens > 0 ? [tokens([100], scriptedLogprobs([100], 1))] : []),
      finished('length'),
    ];
    const { post } = gateway(script);
    const body = { model: 'bytes', prompt: 'abc', echo: true, logprobs: 1, max_tokens: 1 };
    const answer = await json(post('/v1/completions', body));
    expect(answer.choices[0]?.text).toBe('abcd');
    expect(answer.choices[0]?.logprobs).toMatchObject({
      tokens: ['a', 'b', 'c', 'd'],
      token_logprobs: [null, -1, -2, -1],
      text_offset: [0, 1, 2, 3],
    });
    const scored = await json(post('/v1/completions', { ...body, max_tokens: 0 }));
    expect(scored.choices[0]?.text).toBe('abc');
    const streamed = await events(await post('/v1/completions', { ...body, stream: true }));
    expect(streamed[0]).toMatchObject({ choices: [{ text: 'abc', logprobs: { token_logprobs: [null, -1, -2] } }] });
    expect(streamed[1]).toMatchObject({
      choices: [{ text: 'd', logprobs: { token_logprobs: [-1], text_offset: [3] } }],
    });
  });
});

describe('a KV budget', () => {
  const { model } = gatewayOptions(new ScriptedPort(answering('x')));
  const sparse = { model: { ...model, kvBudget: { least: 33, most: 100 } } };

  it('goes to the port, and usage has the kept tokens of each prompt', async () => {
    const script: Script = () => [accepted, { ...started(2), keptTokens: 40 }, tokens([1]), finished('length')];
    const { post, port } = gateway(script, sparse);
    const body = { model: 'bytes', prompt: [[1], [2]], max_tokens: 1, kv_budget: 50, n: 2 };
    const answer = await json(post('/v1/completions', body));
    expect(port.requests.map(({ kvBudget }) => kvBudget)).toEqual([50, 50, 50, 50]);
    expect(answer.usage).toMatchObject({ prompt_tokens_details: { cached_tokens: 4, kept_tokens: 80 } });
    await post('/v1/completions', { ...body, kv_budget: 'full' });
    expect(port.requests.at(-1)?.kvBudget).toBe('full');
  });

  it.each([
    [{}, 50, 'this server keeps the full KV of every request'],
    [{ model: { ...model, kvBudget: { least: undefined, most: undefined } } }, 50, 'a fixed budget for each layer'],
    [sparse, 32, "this server accepts 33 to 100, or 'full'"],
    [sparse, 101, "this server accepts 33 to 100, or 'full'"],
    [sparse, 0, "'kv_budget' must be at least 1, got 0"],
    [sparse, -5, "'kv_budget' must be at least 1, got -5"],
    [sparse, 50.5, "'kv_budget' must be a number of tokens or 'full', got 50.5"],
    [sparse, 2 ** 60, "'kv_budget'"],
    [sparse, '50', "'kv_budget' must be a number of tokens or 'full'"],
  ])('is refused with 400: %#', async (more, kvBudget, message) => {
    const { post } = gateway(answering('x'), more);
    const response = await post('/v1/chat/completions', { ...chat, kv_budget: kvBudget });
    expect(response.status).toBe(400);
    const { error } = (await response.json()) as { error: { message: string; param: string } };
    expect(error).toMatchObject({ message: expect.stringContaining(message), param: 'kv_budget' });
  });

  it('refuses more log-probabilities than a response may hold, with the figures', async () => {
    const { post } = gateway(answering('x'), { choicesMax: 4096 });
    const send = (prompts: number) =>
      post('/v1/completions', {
        ...{ model: 'bytes', prompt: Array.from({ length: prompts }, () => [1, 2, 3, 4]) },
        ...{ n: 16, max_tokens: 60, logprobs: 19, echo: true },
      });
    expect((await send(48)).status).toBe(200);
    const refused = await send(49);
    expect(refused.status).toBe(400);
    expect(await json(refused)).toMatchObject({
      error: {
        param: 'logprobs',
        message:
          'Cannot accept request: 50176 tokens with 19 alternatives each are 1003520 log-probabilities, a response has at most 1000000',
      },
    });
  });

  it('is refused with log-probabilities of the prompt', async () => {
    const { post } = gateway(answering('x'), sparse);
    const body = { model: 'bytes', prompt: 'hi', max_tokens: 1, echo: true, logprobs: 1, kv_budget: 50 };
    const answer = await json(post('/v1/completions', body));
    expect(answer.error.message).toContain("with 'echo' and 'logprobs' the prompt keeps its full KV");
  });
});

it('forwards the cache salt to the port', async () => {
  const { post, port } = gateway(answering('x'));
  await post('/v1/chat/completions', { ...chat, cache_salt: 'tenant-7' });
  await post('/v1/completions', { model: 'bytes', prompt: 'p' });
  expect(port.requests.map(({ salt }) => salt)).toEqual(['tenant-7', '']);
});

describe('refusals', () => {
  const cases: readonly (readonly [string, string, unknown, number, string | null])[] = [
    ['bad JSON', '/v1/chat/completions', '{', 400, null],
    ['a list as body', '/v1/chat/completions', [], 400, null],
    ['no messages', '/v1/chat/completions', { model: 'bytes' }, 400, 'messages'],
    ['empty messages', '/v1/chat/completions', { ...chat, messages: [] }, 400, 'messages'],
    [
      'an image part',
      '/v1/chat/completions',
      { ...chat, messages: [{ role: 'user', content: [{ type: 'image_url' }] }] },
      400,
      'messages.0.content.0.type',
    ],
    ['negative temperature', '/v1/chat/completions', { ...chat, temperature: -1 }, 400, 'temperature'],
    [
      'tools',
      '/v1/chat/completions',
      { ...chat, tools: [{ type: 'function', function: { name: 'f' } }] },
      400,
      'tools',
    ],
    [
      'json mode',
      '/v1/chat/completions',
      { ...chat, response_format: { type: 'json_object' } },
      400,
      'response_format',
    ],
    ['unknown field', '/v1/chat/completions', { ...chat, wings: 2 }, 400, 'wings'],
    ['a prototype name', '/v1/chat/completions', { ...chat, constructor: 1 }, 400, 'constructor'],
    ['top_logprobs alone', '/v1/chat/completions', { ...chat, top_logprobs: 3 }, 400, 'top_logprobs'],
    ['unknown model', '/v1/chat/completions', { ...chat, model: 'gpt-9' }, 404, 'model'],
    ['too many tokens', '/v1/chat/completions', { ...chat, max_tokens: 90 }, 400, 'max_tokens'],
    ['long prompt', '/v1/completions', { model: 'bytes', prompt: 'x'.repeat(200) }, 400, 'max_tokens'],
    ['empty prompt', '/v1/completions', { model: 'bytes', prompt: '' }, 400, 'prompt'],
    ['unknown token', '/v1/completions', { model: 'bytes', prompt: [1, 999] }, 400, 'prompt'],
    ['unknown bias', '/v1/completions', { model: 'bytes', prompt: 'x', logit_bias: { 999: 1 } }, 400, 'logit_bias'],
    ['nothing to do', '/v1/completions', { model: 'bytes', prompt: 'x', max_tokens: 0 }, 400, 'max_tokens'],
    ['unknown path', '/v1/nope', {}, 404, null],
    ['large body', '/v1/completions', { model: 'bytes', prompt: 'x'.repeat(20_000) }, 413, null],
  ];
  it.each(cases)('%s', async (_name, path, body, status, param) => {
    const { post, port } = gateway(answering('x'));
    const response = await post(path, body);
    const { error } = await json(response);
    expect(response.status).toBe(status);
    expect(error).toMatchObject({ param });
    expect(error.message).toMatch(/^Cannot /);
    expect(response.headers.get('x-request-id')).toMatch(/^req-/);
    expect(port.requests).toHaveLength(0);
  });

  it('leaves special tokens in the text, and gives every chunk its token ids, if the request asks for them', async () => {
    const { post } = gateway(() => [accepted, started(0), tokens([97]), tokens([256]), finished('length')]);
    const body = { model: 'bytes', prompt: [1], max_tokens: 4, stream: true, ignore_eos: true, return_token_ids: true };
    const chunksOf = async (more: object) =>
      (await events(await post('/v1/completions', { ...body, ...more }))).flatMap((chunk) =>
        chunk === 'done' ? [] : (chunk as { choices: { text: string; token_ids: number[] }[] }).choices,
      );
    const [whole, plain] = [await chunksOf({ skip_special_tokens: false }), await chunksOf({})];
    expect([whole, plain].map((chunks) => chunks.map(({ text }) => text).join(''))).toEqual(['a<eos>', 'a']);
    expect(plain.flatMap(({ token_ids: ids }) => [...ids])).toEqual([97, 256]);
  });

  it('accepts nulls and fields without effect', async () => {
    const { post } = gateway(answering('x'));
    const harmless = {
      tools: [],
      store: false,
      user: 'u',
      metadata: { a: '1' },
      response_format: { type: 'text' },
      seed: null,
      stop: '',
      min_tokens: 0,
      skip_special_tokens: true,
      wings: null,
    };
    expect((await post('/v1/chat/completions', { ...chat, ...harmless })).status).toBe(200);
  });

  it('responds to overload with 429 and Retry-After, also for streams', async () => {
    const refuse: Script = () => [
      { kind: 'failed', code: 'KV_OVERLOADED', message: 'Cannot admit request: full', retryAfterMs: 2300 },
    ];
    const { post } = gateway(refuse);
    for (const stream of [false, true]) {
      const response = await post('/v1/chat/completions', { ...chat, stream });
      expect(response.status).toBe(429);
      expect(response.headers.get('retry-after')).toBe('3');
    }
  });

  it('hides internal errors', async () => {
    const { post } = gateway(() => {
      throw new Error('secret path');
    });
    const response = await post('/v1/chat/completions', chat);
    expect(response.status).toBe(500);
    expect(await response.text()).not.toContain('secret');
  });

  it('requires a key if one is configured', async () => {
    const { post, app } = gateway(answering('x'), { keys: new ApiKeys({ users: ['k1', 'k2'], admins: [] }) });
    expect((await post('/v1/chat/completions', chat)).status).toBe(401);
    expect((await post('/v1/chat/completions', chat, { authorization: 'Bearer nope' })).status).toBe(401);
    expect((await post('/v1/chat/completions', chat, { authorization: 'Bearer k2' })).status).toBe(200);
    expect((await app.request('/health')).status).toBe(200);
  });
});

describe('information', () => {
  it('lists the model, reports readiness, and exposes metrics', async () => {
    const { app, port, post } = gateway(answering('xy'));
    await post('/v1/chat/completions', chat);
    expect(await (await app.request('/v1/models')).json()).toMatchObject({
      data: [{ id: 'bytes', max_model_len: 100 }],
    });
    expect((await app.request('/v1/models/bytes')).status).toBe(200);
    expect((await app.request('/v1/models/other')).status).toBe(404);
    expect((await app.request('/ready')).status).toBe(200);
    port.unready = { kind: 'unreachable', message: 'the NATS server is unreachable' };
    const unready = await app.request('/ready');
    expect(unready.status).toBe(503);
    expect(await unready.json()).toEqual({ status: 'unreachable', message: 'the NATS server is unreachable' });
    const metrics = await (await app.request('/metrics')).text();
    expect(metrics).toMatch(/kvasir_kv_pages_used 40/);
    expect(metrics).toMatch(/kvasir_ttft_seconds_count 1/);
    expect(metrics).toMatch(/kvasir_itl_seconds_count 1/);
    expect(metrics).toMatch(/kvasir_step_seconds_total 1.5/);
  });
});
