// `kvasir/ai-sdk`: an engine as a language model of the AI SDK (`generateText`, `streamText`, `generateObject`).
import type {
  LanguageModelV3,
  LanguageModelV3CallOptions,
  LanguageModelV3Content,
  LanguageModelV3FinishReason,
  LanguageModelV3FunctionTool,
  LanguageModelV3Message,
  LanguageModelV3StreamPart,
  LanguageModelV3ToolChoice,
  LanguageModelV3ToolResultOutput,
  LanguageModelV3Usage,
  SharedV3Warning,
} from '@ai-sdk/provider';
import type { ChatOptions } from './chat.ts';
import type { Usage } from './engine.ts';
import type { Llm } from './llm.ts';
import type { Message, Tool, ToolChoice, ToolSet } from './messages.ts';

/** A language model of the AI SDK that runs in this process. The AI SDK executes tools itself. */
export function languageModel(llm: Llm): LanguageModelV3 {
  return {
    specificationVersion: 'v3',
    provider: 'kvasir',
    modelId: llm.model.id,
    // Models here read text alone.
    supportedUrls: {},
    doGenerate: async (options) => {
      const { run, warnings } = start(llm, options);
      const { text, reasoning, toolCalls, finishReason, usage } = await run;
      const content: LanguageModelV3Content[] = [
        ...(reasoning === '' ? [] : [{ type: 'reasoning' as const, text: reasoning }]),
        ...(text === '' ? [] : [{ type: 'text' as const, text }]),
        ...toolCalls.map(({ id, name, text: input }) => toolCallPart(id, name, input)),
      ];
      return { content, finishReason: finishOf(finishReason), usage: usageOf(usage), warnings };
    },
    doStream: async (options) => {
      const { run, warnings } = start(llm, options);
      const parts = streamParts(run, warnings);
      return {
        stream: new ReadableStream<LanguageModelV3StreamPart>({
          pull: async (controller) => {
            const { done, value } = await parts.next();
            if (done === true) controller.close();
            else controller.enqueue(value);
          },
          cancel: (reason) => run.cancel(reason),
        }),
      };
    },
  };
}

type ToolRun = ReturnType<typeof start>['run'];

function start(llm: Llm, options: LanguageModelV3CallOptions) {
  const { prompt, tools = [], toolChoice, responseFormat } = options;
  const functions = tools.filter((each): each is LanguageModelV3FunctionTool => each.type === 'function');
  const schema =
    responseFormat?.type === 'json'
      ? ((responseFormat.schema ?? { type: 'object' }) as Record<string, unknown>)
      : undefined;
  const given: ChatOptions<undefined, ToolSet> = {
    tools: Object.fromEntries(functions.map((each) => [each.name, toolOf(each)])),
    ...(toolChoice !== undefined && { toolChoice: toolChoiceOf(toolChoice) }),
    // The AI SDK runs the tools itself.
    toolRoundsMax: 0,
    signal: options.abortSignal,
    maxTokens: options.maxOutputTokens,
    temperature: options.temperature,
    topP: options.topP,
    topK: options.topK,
    presencePenalty: options.presencePenalty,
    frequencyPenalty: options.frequencyPenalty,
    seed: options.seed,
    stop: options.stopSequences,
  };
  const warnings: SharedV3Warning[] = tools.flatMap((each) =>
    each.type === 'function' ? [] : [{ type: 'unsupported', feature: `the provider tool ${each.id}` }],
  );
  // The AI SDK reads and checks the JSON itself, also where it was cut.
  return { run: llm.chat(prompt.flatMap(messagesOf), { ...given, outputSchema: schema }), warnings };
}

async function* streamParts(run: ToolRun, warnings: SharedV3Warning[]): AsyncGenerator<LanguageModelV3StreamPart> {
  yield { type: 'stream-start', warnings };
  let open: { readonly type: 'text' | 'reasoning'; readonly id: string } | undefined;
  let count = 0;
  try {
    for await (const delta of run) {
      if (open !== undefined && delta.type !== open.type) {
        yield { type: `${open.type}-end`, id: open.id };
        open = undefined;
      }
      if (delta.type === 'text' || delta.type === 'reasoning') {
        if (open === undefined) {
          open = { type: delta.type, id: String(count++) };
          yield { type: `${open.type}-start`, id: open.id };
        }
        yield { type: `${open.type}-delta`, id: open.id, delta: delta.text };
      } else if (delta.type === 'tool-call') {
        const { id, name, text } = delta.call;
        yield { type: 'tool-input-start', id, toolName: name };
        yield { type: 'tool-input-delta', id, delta: text };
        yield { type: 'tool-input-end', id };
        yield toolCallPart(id, name, text);
      }
    }
    if (open !== undefined) yield { type: `${open.type}-end`, id: open.id };
    const { finishReason, usage } = await run;
    yield { type: 'finish', finishReason: finishOf(finishReason), usage: usageOf(usage) };
  } catch (error) {
    yield { type: 'error', error };
  }
}

function toolOf({ description, inputSchema, strict }: LanguageModelV3FunctionTool): Tool {
  return {
    parameters: inputSchema as Record<string, unknown>,
    ...(description !== undefined && { description }),
    ...(strict !== undefined && { strict }),
  };
}

function toolChoiceOf(choice: LanguageModelV3ToolChoice): ToolChoice {
  return choice.type === 'tool' ? { tool: choice.toolName } : choice.type;
}

function toolCallPart(id: string, name: string, text: string) {
  return { type: 'tool-call', toolCallId: id, toolName: name, input: text.trim() === '' ? '{}' : text } as const;
}

function finishOf(reason: 'stop' | 'length' | 'tool-calls'): LanguageModelV3FinishReason {
  return { unified: reason, raw: reason };
}

function usageOf({ promptTokens, cachedTokens, outputTokens, reasoningTokens }: Usage): LanguageModelV3Usage {
  return {
    inputTokens: {
      total: promptTokens,
      noCache: promptTokens - cachedTokens,
      cacheRead: cachedTokens,
      cacheWrite: undefined,
    },
    outputTokens: { total: outputTokens, text: outputTokens - reasoningTokens, reasoning: reasoningTokens },
  };
}

function messagesOf(message: LanguageModelV3Message): Message[] {
  switch (message.role) {
    case 'system':
      return [{ role: 'system', content: message.content }];
    case 'user':
      return [{ role: 'user', content: message.content.map((part) => textOf(part)).join('') }];
    case 'assistant': {
      const textsOf = (type: 'text' | 'reasoning') =>
        message.content.map((part) => (part.type === type ? part.text : '')).join('');
      const reasoning = textsOf('reasoning');
      const toolCalls = message.content.flatMap((part) =>
        part.type === 'tool-call' ? [{ id: part.toolCallId, name: part.toolName, arguments: part.input }] : [],
      );
      for (const part of message.content) if (part.type === 'file') textOf(part);
      return [{ role: 'assistant', content: textsOf('text'), ...(reasoning !== '' && { reasoning }), toolCalls }];
    }
    case 'tool':
      return message.content.flatMap((part) =>
        part.type === 'tool-result'
          ? [{ role: 'tool' as const, toolCallId: part.toolCallId, content: resultText(part.output) }]
          : [],
      );
  }
}

/** @throws Error for a file */
function textOf(
  part: { readonly type: 'text'; readonly text: string } | { readonly type: 'file'; readonly mediaType: string },
) {
  if (part.type === 'text') return part.text;
  throw new Error(`Cannot accept request: models here read text, not ${part.mediaType}`);
}

function resultText(output: LanguageModelV3ToolResultOutput): string {
  if (output.type === 'text' || output.type === 'error-text') return output.value;
  if (output.type === 'execution-denied') return `Error: ${output.reason ?? 'the user denied the call'}`;
  if (output.type !== 'content') return JSON.stringify(output.value);
  return output.value.map((part) => (part.type === 'text' ? part.text : '')).join('');
}
