// The loop of a coding agent with the official Anthropic client on a real instance: how much of its prompts is cached.
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { createApp } from '../../../src/gateway/http/app.ts';
import { ChatTemplate } from '../../../src/text/template/chat-template.ts';
import { liveCluster } from '../../runtime/threads/instances.ts';
import { embeddedModel, openText } from '../../text/models.ts';
import { toolTemplates } from '../../text/tools/templates.ts';
import { ScriptedPort } from '../scripted-port.ts';
import { gatewayOptions } from '../world.ts';

const blockTokens = 32;
const blockBytes = blockTokens * 6 * 2 * 2 * 64 * 2;
const contextTokens = 1024;
const { tokenizer } = openText(embeddedModel);

/** Room for less than two conversations; half of it for marked prefixes. */
const cluster = liveCluster([{ contextTokens, kvBytes: 64 * blockBytes, pinShare: 0.5 }]);
const base = gatewayOptions(new ScriptedPort(() => []));
const { vocabSize, eosIds } = tokenizer;
const model = {
  ...base.model,
  contextTokens,
  vocabSize,
  tokenizer,
  eosIds: [...eosIds],
  defaults: { ...base.model.defaults, temperature: 0 },
};
const encode = async (text: string, addSpecial: boolean) => Int32Array.from(tokenizer.encode(text, { addSpecial }));
const app = createApp({
  ...{ ...base, port: cluster, cluster, encode, bodyBytesMax: 1 << 20 },
  model: { ...model, chatTemplate: new ChatTemplate(toolTemplates.qwen3) },
});
const client = new Anthropic({
  baseURL: 'http://kvasir',
  apiKey: 'none',
  maxRetries: 0,
  fetch: (url, init) => Promise.resolve(app.request(url as string, init as RequestInit)),
});

beforeAll(() => cluster.ready());
afterAll(() => cluster.close());

const words = (seed: number, count: number): string =>
  Array.from(
    { length: count },
    (_, i) => ['fox', 'lantern', 'river', 'stone', 'apple'][(seed * i + (i >> 2)) % 5],
  ).join(' ');

const tools = ['read_file', 'edit_file'].map((name) => ({
  name,
  description: `${name}: ${words(name.length, 12)}`,
  input_schema: { type: 'object' as const, properties: { path: { type: 'string' } } },
}));

interface Loop {
  readonly hitRatio: number;
  /** (turns): tokens of the prompt, and those of them that were cached. */
  readonly prompts: readonly (readonly [tokens: number, cached: number])[];
}

/** Prompts of others, which need all memory that is not pinned. */
async function flood(kind: number): Promise<void> {
  for (let i = 0; i < 2; i++) {
    const messages = [{ role: 'user' as const, content: words(kind * 2 + i + 7, 750) }];
    await client.messages.create({ model: 'bytes', max_tokens: 1, messages });
  }
}

async function agentLoop(kind: number, turns: number, isMarked: boolean): Promise<Loop> {
  const mark = isMarked ? { cache_control: { type: 'ephemeral' as const } } : {};
  const system = [{ type: 'text' as const, text: `Agent ${kind}. ${words(kind, 60)}`, ...mark }];
  const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'Mend the lantern.' }];
  const prompts: [number, number][] = [];
  for (let turn = 0; turn < turns; turn++) {
    const fields = { model: 'bytes', max_tokens: 8, system, tools, messages };
    const { content, usage } = await client.messages.stream(fields).finalMessage();
    const cached = usage.cache_read_input_tokens ?? 0;
    prompts.push([usage.input_tokens + cached, cached]);
    const id = `call${turn}`;
    const path = `src/${words(turn, 2)}.ts`;
    messages.push({
      role: 'assistant',
      content: [...content, { type: 'tool_use', id, name: 'read_file', input: { path } }],
    });
    const result = { type: 'tool_result' as const, tool_use_id: id, content: words(turn + kind, 30), ...mark };
    messages.push({ role: 'user', content: [result] });
    if (turn < turns - 1) await flood(kind * 10 + turn);
  }
  const sum = (i: 0 | 1): number => prompts.reduce((total, figures) => total + figures[i], 0);
  return { hitRatio: sum(1) / sum(0), prompts };
}

it('finds the marked prefix of each turn in the next one, whatever others compute between them', async () => {
  const marked = await agentLoop(1, 4, true);
  const unmarked = await agentLoop(2, 2, false);
  for (const [turn, [, cached]] of marked.prompts.entries()) {
    // The mark of a turn is before the generation prompt: two blocks shorter than its prompt at most.
    const before = marked.prompts[turn - 1]?.[0] ?? 2 * blockTokens;
    expect(cached).toBeGreaterThanOrEqual(before - 2 * blockTokens);
  }
  expect(marked.hitRatio).toBeGreaterThan(0.55);
  expect(unmarked.hitRatio).toBeLessThan(0.1);
});
