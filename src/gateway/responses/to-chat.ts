// Translates requests to /v1/responses into chat requests.
import { badField } from '../http/errors.ts';
import type { ChatBody } from '../openai/schema.ts';
import { type InputItem, type ItemContent, type ResponsesBody, sampling } from './response-schema.ts';

type ChatMessage = ChatBody['messages'][number];

/** Fields that need stored responses, with the value that has no effect. */
const stateful = {
  previous_response_id: undefined,
  conversation: undefined,
  prompt: undefined,
  store: false,
  background: false,
} as const;

/** @throws ApiError 400 for a field that needs stored responses */
export function refuseState(body: ResponsesBody): void {
  for (const [field, harmless] of Object.entries(stateful)) {
    const value = Reflect.get(body, field);
    if (value === undefined || value === harmless) continue;
    const remedy =
      field === 'store' || field === 'background' ? 'send false' : "send the whole conversation as 'input'";
    const reason = `'${field}' requires stored responses, and this server stores none: ${remedy}`;
    throw badField(field, `Cannot accept request: ${reason}`, 'unsupported_parameter');
  }
}

export function chatOf(body: ResponsesBody): ChatBody {
  const { input, instructions, max_output_tokens, reasoning, text, tools = [], tool_choice: choice } = body;
  const format = text?.format;
  return {
    ...samplingOf(body),
    messages: messagesOf(instructions, input),
    ...(max_output_tokens !== undefined && { max_tokens: max_output_tokens }),
    ...(reasoning?.effort !== undefined && { reasoning_effort: reasoning.effort }),
    ...(format && format.type !== 'text' && { response_format: formatOf(format) }),
    ...(tools.length > 0 && { tools: tools.map(toolOf) }),
    ...(choice !== undefined && { tool_choice: toolChoiceOf(choice) }),
  };
}

/** The fields that have the same name and meaning in both. */
function samplingOf(body: ResponsesBody) {
  const names = new Set([...Object.keys(sampling), 'parallel_tool_calls', 'chat_template_kwargs']);
  const known = Object.entries(body).filter(([name]) => names.has(name));
  return Object.fromEntries(known) as Pick<ResponsesBody, 'model' | keyof typeof sampling> & Partial<ChatBody>;
}

function messagesOf(instructions: string | undefined, input: ResponsesBody['input']): ChatMessage[] {
  const system: ChatMessage[] = instructions === undefined ? [] : [{ role: 'system', content: instructions }];
  if (typeof input === 'string') return [...system, { role: 'user', content: input }];
  const turns = new Turns();
  for (const item of input) turns.add(item);
  return [...system, ...turns.messages];
}

/** Reasoning, text and calls in sequence are one message of the assistant. */
class Turns {
  readonly messages: ChatMessage[] = [];
  #assistant: ChatMessage | undefined;

  add(item: InputItem): void {
    switch (item.type) {
      case 'function_call':
        this.#extend({
          tool_calls: [
            ...(this.#assistant?.tool_calls ?? []),
            { id: item.call_id, type: 'function', function: { name: item.name, arguments: item.arguments } },
          ],
        });
        break;
      case 'reasoning': {
        const texts = item.content ?? item.summary ?? [];
        // The reasoning begins a message.
        this.#assistant = undefined;
        if (texts.length > 0) this.#extend({ reasoning_content: texts.map(({ text }) => text).join('\n') });
        break;
      }
      case 'function_call_output':
        this.#push({ role: 'tool', tool_call_id: item.call_id, content: textOf(item.output) });
        break;
      default: {
        const content = contentOf(item.content);
        const follows = this.#assistant?.content === '' && this.#assistant.tool_calls === undefined;
        if (item.role === 'assistant' && follows) this.#extend({ content });
        else this.#push({ role: item.role, content });
      }
    }
  }

  #push(message: ChatMessage): void {
    this.messages.push(message);
    this.#assistant = message.role === 'assistant' ? message : undefined;
  }

  #extend(more: Partial<ChatMessage>): void {
    if (this.#assistant === undefined) this.#push({ role: 'assistant', content: '' });
    const extended: ChatMessage = { role: 'assistant', content: '', ...this.#assistant, ...more };
    this.messages[this.messages.length - 1] = extended;
    this.#assistant = extended;
  }
}

/** One text stays a string: some templates accept no parts. */
function contentOf(content: ItemContent): NonNullable<ChatMessage['content']> {
  if (typeof content === 'string' || content.length < 2) return textOf(content);
  return content.map((part) => ({ type: 'text', text: part.type === 'refusal' ? part.refusal : part.text }));
}

function textOf(content: ItemContent): string {
  if (typeof content === 'string') return content;
  return content.map((part) => (part.type === 'refusal' ? part.refusal : part.text)).join('\n');
}

function toolOf({ name, description, parameters, strict }: NonNullable<ResponsesBody['tools']>[number]) {
  return { type: 'function' as const, function: { name, description, parameters, strict } };
}

function toolChoiceOf(choice: NonNullable<ResponsesBody['tool_choice']>): NonNullable<ChatBody['tool_choice']> {
  return typeof choice === 'string' ? choice : { type: 'function', function: { name: choice.name } };
}

type TextFormat = NonNullable<NonNullable<ResponsesBody['text']>['format']>;

function formatOf(format: Exclude<TextFormat, { type: 'text' }>): NonNullable<ChatBody['response_format']> {
  if (format.type === 'json_object') return format;
  const { type, ...schema } = format;
  return { type, json_schema: schema };
}
