// The examples with one engine of the embedded model: routes of Express, Hono and Next.js, the AI SDK, LangChain.js.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Llm } from '../../src/library/index.ts';
import { bundled, scripted } from './world.ts';

/** The examples import the package by its name, and a project of their own checks their types. */
async function example<T>(name: string): Promise<T> {
  return (await import(new URL(`../../examples/${name}.ts`, import.meta.url).href)) as T;
}

const toolTemplate = readFileSync(new URL('../e2e/tool-template.jinja', import.meta.url), 'utf8');
const recall = 'Remember: the code for zebra is 4821. The code for apple is 9077. What is the code for zebra?';
const answer = 'The code for zebra is 4821.';
const ada = '{"name":"Ada","age":36}';
/** A model that answers so. */
const knowing = (text: string) => scripted(() => text);
const tooLong = 'word '.repeat(2_000);
const post = (prompt: string): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ temperature: 0, messages: [{ role: 'user', content: prompt }] }),
});
let llm: Llm;

beforeAll(async () => {
  const { load } = await bundled();
  llm = await load({ threads: 1, build: false, context: 1024, warmUp: false, chatTemplate: toolTemplate });
});
afterAll(() => llm.close());

it('Express streams an answer, and refuses a conversation that does not fit', async () => {
  const { createApp } = await example<{ createApp(llm: Llm): { listen(port: number): Server } }>('express');
  const server = createApp(llm).listen(0);
  await once(server, 'listening');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/chat`;
  expect(await (await fetch(url, post(recall))).text()).toBe(answer);
  const refused = await fetch(url, post(tooLong));
  expect(refused.status).toBe(400);
  expect(await refused.json()).toMatchObject({ code: 'context_length_exceeded' });
  server.closeAllConnections();
  server.close();
});

it('Hono streams an answer, and gives an object of a schema', async () => {
  type App = { request(path: string, init: RequestInit): Promise<Response> };
  const { createApp } = await example<{ createApp(llm: Llm): App }>('hono');
  const app = createApp(llm);
  expect(await (await app.request('/chat', post(recall))).text()).toBe(answer);
  expect((await app.request('/person', { method: 'POST', body: tooLong })).status).toBe(400);
  const person = await createApp(knowing(ada).llm).request('/person', { method: 'POST', body: 'Ada, 36' });
  expect(await person.text()).toBe(ada);
});

it('a route handler of Next.js streams an answer', async () => {
  const kept = globalThis as { kvasir?: Promise<Llm> | undefined };
  kept.kvasir = Promise.resolve(llm);
  const { POST } = await example<{ POST(request: Request): Promise<Response> }>('nextjs/app/api/chat/route');
  expect(await (await POST(new Request('http://host/api/chat', post(recall)))).text()).toBe(answer);
  expect((await POST(new Request('http://host/api/chat', post(tooLong)))).status).toBe(400);
  delete kept.kvasir;
});

describe('the AI SDK', () => {
  it('streams texts, generates objects, and runs tools in several steps', async () => {
    const {
      respond,
      extract,
      answer: ask,
    } = await example<{
      respond(llm: Llm, prompt: string): Response;
      extract(llm: Llm, prompt: string): Promise<unknown>;
      answer(llm: Llm, prompt: string): Promise<{ text: string }>;
    }>('ai-sdk');
    expect(await respond(llm, recall).text()).toBe(answer);
    expect(await extract(knowing(ada).llm, 'Ada is 36.')).toEqual({ name: 'Ada', age: 36 });
    const call = '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>';
    const { llm: caller, port } = scripted((prompt) => (prompt.includes('7 degrees in Oslo') ? 'Cold.' : call));
    expect((await ask(caller, 'What is the weather in Oslo?')).text).toBe('Cold.');
    expect(port.requests.length).toBe(2);
  });
});

describe('LangChain.js', () => {
  interface Message {
    readonly text: string;
    readonly usage_metadata: { readonly output_tokens: number };
    readonly tool_calls: readonly { readonly name: string; readonly args: object }[];
  }
  interface Model {
    invoke(prompt: string, options?: object): Promise<Message>;
    stream(prompt: string, options: object): Promise<AsyncIterable<Message>>;
  }

  it('invokes and streams a chat model', async () => {
    const { ChatKvasir } = await example<{ ChatKvasir: new (llm: Llm) => Model }>('langchain');
    const model = new ChatKvasir(llm);
    const whole = await model.invoke(recall, { temperature: 0 });
    expect(whole).toMatchObject({ text: answer, usage_metadata: { output_tokens: 12 }, tool_calls: [] });
    let text = '';
    for await (const chunk of await model.stream(recall, { temperature: 0 })) text += chunk.text;
    expect(text).toBe(answer);
  });
});
