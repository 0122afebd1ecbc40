// Fields of requests that clients of other servers send: honoured, accepted without effect, or refused in our words.
import { describe, expect, it } from 'vitest';
import { ChatTemplate } from '../../../src/text/template/chat-template.ts';
import { decodeUtf8 } from '../../../src/text/utf8.ts';
import { accepted, finished, type Script, ScriptedPort, started, tokens } from '../scripted-port.ts';
import { answering, events, gateway, gatewayOptions } from '../world.ts';
import { bytesOf } from './byte-tokenizer.ts';

const user = { role: 'user', content: 'hi' };
const chat = { model: 'bytes', messages: [user], max_tokens: 5 };
const completion = { model: 'bytes', prompt: 'x', max_tokens: 5 };
const promptText = (port: ScriptedPort): string => decodeUtf8(Uint8Array.from(port.requests.at(-1)?.prompt ?? []));

async function refusal(response: Response | Promise<Response>): Promise<string> {
  const answer = await response;
  expect(answer.status).toBe(400);
  return ((await answer.json()) as { error: { message: string } }).error.message;
}

describe('fields that are honoured', () => {
  const { model } = gatewayOptions(new ScriptedPort(answering('x')));
  const source =
    '{% for m in messages %}{{ m.reasoning_content or "" }}[{{ m.content }}]{% endfor %}{{ mode }}{{ reasoning_effort }}' +
    '{% if add_generation_prompt %}>{% endif %}';
  const templated = { model: { ...model, chatTemplate: new ChatTemplate(source) } };

  it('chat_template_kwargs, reasoning_effort and reasoning_content reach the template', async () => {
    const { post, port } = gateway(answering('x'), templated);
    const messages = [user, { role: 'assistant', content: 'a', reasoning_content: 'why' }, user];
    const more = { chat_template_kwargs: { mode: 'M' }, reasoning_effort: 'low' };
    expect((await post('/v1/chat/completions', { ...chat, messages, ...more })).status).toBe(200);
    expect(promptText(port)).toBe('[hi]why[a][hi]Mlow>');
    await post('/v1/chat/completions', { ...chat, add_generation_prompt: false });
    expect(promptText(port)).toBe('[hi]');
  });

  it('continue_final_message ends the prompt inside the last message', async () => {
    const { post, port } = gateway(answering('x'), templated);
    const messages = [user, { role: 'assistant', content: 'Once ' }];
    const body = { ...chat, messages, continue_final_message: true };
    expect((await post('/v1/chat/completions', body)).status).toBe(200);
    expect(promptText(port)).toBe('[hi][Once ');
    expect(await refusal(post('/v1/chat/completions', { ...body, add_generation_prompt: true }))).toContain(
      'both true',
    );
  });

  it('min_tokens reaches the port, up to the output tokens', async () => {
    const { post, port } = gateway(answering('x'));
    expect((await post('/v1/completions', { ...completion, min_tokens: 5 })).status).toBe(200);
    expect(port.requests.map(({ minTokens }) => minTokens)).toEqual([5]);
    expect(await refusal(post('/v1/completions', { ...completion, min_tokens: 6 }))).toContain("'min_tokens' is 6");
  });

  it('a seed beyond 2^53 is a seed, and the same choice of every prompt has the same stream', async () => {
    const { post, port } = gateway(answering('x'));
    const body = { ...completion, prompt: ['a', 'b'], n: 2, seed: 2 ** 63 };
    expect((await post('/v1/completions', body)).status).toBe(200);
    const seeds = port.requests.map(({ sampling }) => String(sampling.seed));
    expect(seeds[0]).not.toBe(seeds[1]);
    expect(seeds.slice(2)).toEqual(seeds.slice(0, 2));
    expect(await refusal(post('/v1/completions', { ...body, seed: 2 ** 65 }))).toContain('at most 64 bits');
  });
});

it('fields without effect are accepted', async () => {
  const { post } = gateway(answering('x'));
  const content = [{ type: 'text', text: 'hi', cache_control: { type: 'ephemeral' } }];
  const messages = [{ role: 'user', content, cache_control: { type: 'ephemeral' } }];
  expect((await post('/v1/chat/completions', { ...chat, messages, cache_prompt: false })).status).toBe(200);
});

it('unknown fields are ignored where the server is told so, unsupported ones are not', async () => {
  const { post } = gateway(answering('x'), { unknownFields: 'ignore' });
  expect((await post('/v1/chat/completions', { ...chat, wings: 2 })).status).toBe(200);
  expect(await refusal(post('/v1/chat/completions', { ...chat, suffix: 'x' }))).toContain(
    "'suffix' is not supported yet",
  );
  expect(await refusal(gateway(answering('x')).post('/v1/chat/completions', { ...chat, wings: 2 }))).toContain('wings');
});

it.each([
  [{ max_tokens: -1 }, "'max_tokens' must be at least 1, got -1"],
  [{ temperature: 3 }, "'temperature' must be at most 2, got 3"],
  [{ top_p: 0 }, "'top_p' must be above 0, got 0"],
  [{ n: 1.5 }, "'n' must be an integer, got 1.5"],
  [{ stream: 'yes' }, `'stream' must be true or false, got "yes"`],
  [{ model: undefined }, "'model' is missing"],
  [{ messages: [{ role: 'root', content: 'x' }] }, "'messages.0.role' must be 'system', 'developer', 'user'"],
  [{ stop: 5 }, "'stop' must be text or a list of up to 16 texts, got 5"],
])('an invalid value is refused in one line with what is required: %#', async (more, message) => {
  const { post } = gateway(answering('x'));
  expect(await refusal(post('/v1/chat/completions', { ...chat, ...more }))).toContain(
    `Cannot accept request: ${message}`,
  );
});

describe('output', () => {
  it('an echoed prompt of one token has its entry', async () => {
    const script: Script = () => [accepted, started(0), tokens(bytesOf('-'), logprob), finished('length')];
    const { post } = gateway(script);
    const body = { model: 'bytes', prompt: 'h', echo: true, logprobs: 1, max_tokens: 1 };
    const expected = { tokens: ['h', '-'], token_logprobs: [null, -1], text_offset: [0, 1] };
    const whole = (await (await post('/v1/completions', body)).json()) as { choices: object[] };
    expect(whole.choices[0]).toMatchObject({ logprobs: expected });
    const [first] = await events(await post('/v1/completions', { ...body, stream: true }));
    expect(first).toMatchObject({ choices: [{ text: 'h', logprobs: { tokens: ['h'], token_logprobs: [null] } }] });
  });

  it('an output that is cut inside a character ends before it', async () => {
    const ids = bytesOf('a語').slice(0, 3);
    const { post } = gateway(() => [accepted, started(0), tokens(ids), finished('length')]);
    const whole = (await (await post('/v1/completions', completion)).json()) as { choices: object[] };
    expect(whole.choices[0]).toMatchObject({ text: 'a', finish_reason: 'length' });
  });
});

const logprob = {
  width: 1,
  logprobs: Float32Array.of(-1),
  topTokens: Int32Array.of(1),
  topLogprobs: Float32Array.of(-0.5),
};
