// A chat model of LangChain.js over an engine in the same process.
import { fileURLToPath } from 'node:url';
import type { CallbackManagerForLLMRun } from '@langchain/core/callbacks/manager';
import {
  BaseChatModel,
  type BaseChatModelCallOptions,
  type BindToolsInput,
} from '@langchain/core/language_models/chat_models';
import { AIMessage, AIMessageChunk, type BaseMessage, isAIMessage, isToolMessage } from '@langchain/core/messages';
import { ChatGenerationChunk, type ChatResult } from '@langchain/core/outputs';
import { convertToOpenAITool } from '@langchain/core/utils/function_calling';
import { type ChatOptions, type Llm, load, type Message, type ToolSet, type Usage } from 'kvasir';

export interface KvasirCallOptions extends BaseChatModelCallOptions {
  readonly tools?: BindToolsInput[];
  readonly temperature?: number;
  readonly maxTokens?: number;
}

export class ChatKvasir extends BaseChatModel<KvasirCallOptions, AIMessageChunk> {
  readonly #llm: Llm;

  constructor(llm: Llm) {
    super({});
    this.#llm = llm;
  }

  _llmType(): string {
    return 'kvasir';
  }

  override bindTools(tools: BindToolsInput[], options?: Partial<this['ParsedCallOptions']>) {
    return this.withConfig({ ...options, tools } as Partial<KvasirCallOptions>);
  }

  async _generate(messages: BaseMessage[], options: this['ParsedCallOptions']): Promise<ChatResult> {
    const { text, toolCalls, usage } = await this.#llm.chat(messages.map(messageOf), chatOptions(options));
    const tool_calls = toolCalls.map(({ id, name, arguments: args }) => ({ id, name, args: args as object }));
    const message = new AIMessage({ content: text, tool_calls });
    Object.assign(message, { usage_metadata: usageOf(usage) });
    return { generations: [{ text, message }] };
  }

  override async *_streamResponseChunks(
    messages: BaseMessage[],
    options: this['ParsedCallOptions'],
    manager?: CallbackManagerForLLMRun,
  ): AsyncGenerator<ChatGenerationChunk> {
    const run = this.#llm.chat(messages.map(messageOf), chatOptions(options));
    let calls = 0;
    for await (const delta of run) {
      if (delta.type === 'text') {
        yield new ChatGenerationChunk({ text: delta.text, message: new AIMessageChunk(delta.text) });
        await manager?.handleLLMNewToken(delta.text);
      } else if (delta.type === 'tool-call') {
        const { id, name, text: args } = delta.call;
        const tool_call_chunks = [{ id, name, args, index: calls++, type: 'tool_call_chunk' as const }];
        yield new ChatGenerationChunk({ text: '', message: new AIMessageChunk({ content: '', tool_call_chunks }) });
      }
    }
    const last = new AIMessageChunk('');
    Object.assign(last, { usage_metadata: usageOf((await run).usage) });
    yield new ChatGenerationChunk({ text: '', message: last });
  }
}

function chatOptions({ tools = [], temperature, maxTokens, stop, signal }: KvasirCallOptions) {
  const functions = tools.map(
    (each) => convertToOpenAITool(each as Parameters<typeof convertToOpenAITool>[0]).function,
  );
  const set: ToolSet = Object.fromEntries(
    functions.map(({ name, description = '', parameters = { type: 'object' } }) => [name, { description, parameters }]),
  );
  return { tools: set, temperature, maxTokens, stop, signal } satisfies ChatOptions<undefined, ToolSet>;
}

function messageOf(message: BaseMessage): Message {
  const content = message.text;
  if (isToolMessage(message)) return { role: 'tool', toolCallId: message.tool_call_id, content };
  if (isAIMessage(message)) {
    const toolCalls = (message.tool_calls ?? []).map(({ id = '', name, args }) => ({ id, name, arguments: args }));
    return { role: 'assistant', content, toolCalls };
  }
  return { role: message.getType() === 'system' ? 'system' : 'user', content };
}

function usageOf({ promptTokens: input_tokens, outputTokens: output_tokens, cachedTokens: cache_read }: Usage) {
  const total_tokens = input_tokens + output_tokens;
  return { input_tokens, output_tokens, total_tokens, input_token_details: { cache_read } };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const model = new ChatKvasir(await load({ model: process.env.MODEL }));
  for await (const chunk of await model.stream('Tell me a story about a fox.')) process.stdout.write(chunk.text);
}
