// The grammar of a chat answer: required calls, calls of strict tools, a response format, and reasoning before them.

import type { Grammar } from '../../core/protocol/grammar.ts';
import { callGrammar, grammarAfterReasoning, type TagFormat } from '../../text/tools/call-grammar.ts';
import type { Tool } from '../../text/tools/tool.ts';
import { badField } from '../http/errors.ts';
import type { AnswerPlan } from './answer-plan.ts';
import type { EndpointContext } from './endpoint.ts';
import { faultOfSchema } from './json-schema.ts';
import type { ChatBody } from './schema.ts';
import { checkGrammar, requestGrammar } from './structured-output.ts';

/**
 * The compiled grammar of the answer; undefined: the answer is free.
 * @throws ApiError 400 naming the field
 */
export async function answerGrammar(
  body: ChatBody,
  plan: AnswerPlan & { readonly hasReasoningBegun: boolean },
  { model, grammars }: Pick<EndpointContext, 'model' | 'grammars'>,
): Promise<Grammar | undefined> {
  const stated = await requestGrammar(body, model, grammars);
  const isForced = plan.choice === 'required' || typeof plan.choice === 'object';
  if (stated !== undefined && isForced)
    throw badField(
      'tool_choice',
      "Cannot accept request: 'tool_choice' requires a call, and the output is constrained otherwise: send one of them",
    );
  const format = formatOf(body, plan, stated, isForced);
  if (format === undefined) return stated;
  const field = stated === undefined ? 'tools' : fieldOf(body);
  if (body.ignore_eos === true)
    throw badField(
      'ignore_eos',
      `Cannot accept request: 'ignore_eos' is true and '${field}' constrains the output: send one of them`,
    );
  const grammar: Grammar = { kind: 'structural_tag', text: JSON.stringify({ type: 'structural_tag', format }) };
  await checkGrammar(field, grammar, model, grammars);
  return grammar;
}

const fieldOf = ({ structured_outputs: outputs }: ChatBody): string =>
  outputs === undefined ? 'response_format' : 'structured_outputs';

/** Undefined: the stated grammar alone. */
function formatOf(
  body: ChatBody,
  { tools, calls, choice, reasoning, hasReasoningBegun }: AnswerPlan & { readonly hasReasoningBegun: boolean },
  stated: Grammar | undefined,
  isForced: boolean,
): TagFormat | undefined {
  const isCalling = calls !== undefined && tools.length > 0 && choice !== 'none';
  const answer = stated === undefined ? undefined : tagOf(stated);
  if (!isCalling) {
    if (answer === undefined || reasoning === undefined) return undefined;
    return grammarAfterReasoning(answer, reasoning, hasReasoningBegun);
  }
  const isInText = !isForced && answer === undefined;
  if (isInText && !tools.some(({ strict }) => strict === true)) return undefined;
  const callable = tools.filter(({ name }) => typeof choice !== 'object' || name === choice.name);
  const format = callGrammar({
    format: calls.format,
    tools: callable.map((tool) => withSchema(tool, tools.indexOf(tool))),
    isInText,
    isParallel: body.parallel_tool_calls !== false && typeof choice !== 'object',
  });
  if (isInText) return format;
  const either: TagFormat = answer === undefined ? format : { type: 'or', elements: [format, answer] };
  return reasoning === undefined ? either : grammarAfterReasoning(either, reasoning, hasReasoningBegun);
}

function tagOf({ kind, text }: Grammar): TagFormat {
  switch (kind) {
    case 'json_schema':
      return { type: 'json_schema', json_schema: JSON.parse(text) };
    case 'regex':
      return { type: 'regex', pattern: text };
    case 'ebnf':
      return { type: 'grammar', grammar: text };
    case 'structural_tag': {
      const tag = JSON.parse(text) as TagFormat | { readonly format: TagFormat };
      return 'format' in tag ? tag.format : tag;
    }
  }
}

const anyArguments = { type: 'object' };

/** A tool with a schema that a grammar expresses. @throws ApiError 400 for a strict tool without one */
function withSchema(tool: Tool, index: number): Tool {
  const { parameters, strict } = tool;
  const fault = parameters === undefined ? undefined : faultOfSchema(parameters);
  if (fault === undefined) return tool;
  if (strict !== true) return { ...tool, parameters: anyArguments };
  const field = `tools.${index}.function.parameters`;
  throw badField(field, `Cannot accept request: '${field}${fault.path}' ${fault.reason}`);
}
