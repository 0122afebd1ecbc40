// How a chat request's output is read: the tools that may be called, the calls and the reasoning in it.

import { randomBytes } from 'node:crypto';
import type { Tokenizer } from '../../text/tokenizer.ts';
import { markerOf, type ReasoningFormat } from '../../text/tools/call-format.ts';
import { markerTokens } from '../../text/tools/marker-tokens.ts';
import { OutputFormats, type TemplateOwner } from '../../text/tools/output-formats.ts';
import { OutputParser } from '../../text/tools/output-parser.ts';
import type { Tool, ToolChoice } from '../../text/tools/tool.ts';
import { badField } from '../http/errors.ts';
import type { ServedModel } from '../http/served-model.ts';
import { hasToolMessages, type TemplateCalls, toolChoiceOf, toolsOf } from './chat-messages.ts';
import type { ChoiceParser } from './choice-output.ts';
import type { ChatBody } from './schema.ts';

export interface AnswerPlan {
  /** Tools that the prompt names. */
  readonly tools: readonly Tool[];
  readonly calls: TemplateCalls;
  readonly choice: ToolChoice;
  /** Undefined: reasoning is text. */
  readonly reasoning: ReasoningFormat | undefined;
  /** A token that the output must not have: it would begin a call. */
  readonly bannedToken: number | undefined;
}

/** @throws ApiError 400 if the template has no tools, or the choice of a tool cannot be honoured */
export function planAnswer(
  body: Pick<ChatBody, 'messages'> & Partial<ChatBody>,
  model: TemplateOwner & Pick<ServedModel, 'id'>,
): AnswerPlan {
  const formats = OutputFormats.of(model);
  const reasoning = body.reasoning_format === 'none' ? undefined : formats.reasoning;
  const tools = toolsOf(body);
  const choice = toolChoiceOf(body);
  checkChoice(choice, tools);
  if (tools.length === 0) {
    const known = hasToolMessages(body.messages) ? formats.calls : undefined;
    return {
      tools,
      choice,
      calls: known !== undefined && 'format' in known ? known : undefined,
      reasoning,
      bannedToken: undefined,
    };
  }
  const calls = formats.calls;
  if ('problem' in calls) {
    const reason = `no format of tool calls can be derived from the chat template of '${model.id}': ${calls.problem}`;
    throw badField('tools', `Cannot accept request: ${reason}`, 'unsupported_parameter');
  }
  if (choice !== 'none') return { tools, calls, choice, reasoning, bannedToken: undefined };
  // If one banned token prevents calls, the prompt still names the tools: its cached prefix stays the same.
  const [marker, second] = model.tokenizer.encode(markerOf(calls.format), { addSpecial: false });
  const isOneToken = marker !== undefined && second === undefined;
  return { tools: isOneToken ? tools : [], calls, choice, reasoning, bannedToken: isOneToken ? marker : undefined };
}

/** @throws ApiError 400 */
function checkChoice(choice: ToolChoice, tools: readonly Tool[]): void {
  if (choice === 'none' || choice === 'auto') return;
  const refused = (why: string) => badField('tool_choice', `Cannot accept request: ${why}`);
  if (tools.length === 0) throw refused("'tool_choice' requires a call, but 'tools' is empty");
  if (typeof choice === 'object' && !tools.some(({ name }) => name === choice.name))
    throw refused(`'tool_choice' names '${choice.name}', which is not among 'tools'`);
}

/** Parsers of the choices of a request; undefined: their outputs are text. */
export function parsingOf(
  { tools, calls, choice, reasoning }: AnswerPlan,
  { parallel_tool_calls: isParallel }: Partial<ChatBody>,
  hasReasoningBegun: boolean,
  tokenizer: Tokenizer,
): (() => ChoiceParser) | undefined {
  const isCalling = tools.length > 0 && calls !== undefined && choice !== 'none';
  if (!isCalling && reasoning === undefined) return undefined;
  const markerIds = markerTokens({ calls: isCalling ? calls.format : undefined, reasoning }, tokenizer);
  const options = {
    reasoning,
    hasReasoningBegun,
    calls: isCalling ? { format: calls.format, tools } : undefined,
    callsMax: isParallel === false || typeof choice === 'object' ? 1 : Number.POSITIVE_INFINITY,
  };
  const hasShortIds = calls?.style.ids === 'short';
  return () => ({ parser: new OutputParser(options), markerIds, newCallId: () => newCallId(hasShortIds) });
}

/** True if the prompt ends inside the reasoning. */
export function hasReasoningBegun(
  prompt: string,
  { continue_final_message: continues, messages }: Pick<ChatBody, 'messages'> & Partial<ChatBody>,
  { reasoning }: AnswerPlan,
): boolean {
  if (reasoning === undefined) return false;
  if (continues !== true) return prompt.trimEnd().endsWith(reasoning.open);
  const content = messages.at(-1)?.content ?? '';
  const final = typeof content === 'string' ? content : content.map(({ text }) => text).join('\n');
  return final.includes(reasoning.open) && final.lastIndexOf(reasoning.open) > final.lastIndexOf(reasoning.close);
}

const digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';

/** An id of nine characters where the template requires it, else as OpenAI's. */
function newCallId(isShort: boolean): string {
  const text = [...randomBytes(isShort ? 9 : 24)].map((byte) => digits[byte % digits.length]).join('');
  return isShort ? text : `call_${text}`;
}
