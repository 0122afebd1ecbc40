// The derived formats of the test templates, and outputs as the templates write them.

import { ChatTemplate } from '../../../src/text/template/chat-template.ts';
import { type CallFormat, namedId, type TemplateStyle, writeCalls } from '../../../src/text/tools/call-format.ts';
import { OutputFormats } from '../../../src/text/tools/output-formats.ts';
import { OutputParser } from '../../../src/text/tools/output-parser.ts';
import type { Tool, ToolCallPiece } from '../../../src/text/tools/tool.ts';
import { type ToolTemplateName, toolTemplates } from './templates.ts';

export interface Call {
  readonly name: string;
  readonly arguments: Readonly<Record<string, unknown>>;
}

/** A tokenizer that has the markers of Phi-4-mini as tokens. */
const tokenizer = { encode: (text: string) => (/^<\|\/?tool_call\|>$/.test(text) ? [1] : [1, 2]) };

export function formatsOf(source: string): OutputFormats {
  return OutputFormats.of({ chatTemplate: new ChatTemplate(source), tokenizer, bosToken: '<s>', eosToken: '</s>' });
}

/** @throws Error if there is none */
export function callsOf(name: ToolTemplateName): { readonly format: CallFormat; readonly style: TemplateStyle } {
  const { calls } = formatsOf(toolTemplates[name]);
  if ('problem' in calls) throw new Error(`${name}: ${calls.problem}`);
  return calls;
}

export const tools: readonly Tool[] = [
  {
    name: 'get_weather',
    description: 'The weather of a place.',
    parameters: {
      type: 'object',
      properties: {
        place: { type: 'string' },
        days: { type: 'integer' },
        more: { type: ['object', 'array', 'null', 'boolean', 'number'] },
      },
      required: ['place'],
    },
  },
  { name: 'add', description: 'A sum.', parameters: { type: 'object', properties: { a: { type: 'number' } } } },
];

const ends = /(<\|im_end\|>\n?|<\|eot_id\|>|<\/s>|<｜end▁of▁sentence｜>)$/;

/** What a model writes for the calls, as its template shows them, without the end of the turn. */
export function outputOf(name: ToolTemplateName, calls: readonly Call[]): string {
  const { format, style } = callsOf(name);
  const list = calls.map((call, i) => ({
    id: style.ids === 'named' ? namedId(call.name, i) : `abcdefgh${i}`,
    type: 'function',
    function: {
      name: call.name,
      arguments: style.argumentsAs === 'object' ? call.arguments : JSON.stringify(call.arguments),
    },
  }));
  if (style.callsInContent)
    return writeCalls(
      format,
      calls.map((call) => ({ name: call.name, arguments: JSON.stringify(call.arguments) })),
    );
  const template = new ChatTemplate(toolTemplates[name]);
  const user = { role: 'user', content: 'Q' };
  const common = {
    bosToken: '<s>',
    eosToken: '</s>',
    nowMs: 0,
    tools: tools.map((tool) => ({ type: 'function', function: tool })),
  };
  const prompt = template.render({ ...common, messages: [user] }).replace(/<think>\n$/, '');
  const answer = { role: 'assistant', content: style.emptyContent, tool_calls: list };
  const whole = template.render({ ...common, messages: [user, answer], addGenerationPrompt: false });
  if (!whole.startsWith(prompt)) throw new Error(`${name}: the answer does not continue the prompt`);
  return whole.slice(prompt.length).replace(ends, '');
}

export interface Parsed {
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly { readonly name: string; readonly arguments: string }[];
}

export interface ParseOptions {
  readonly reasoning?: { readonly open: string; readonly close: string } | undefined;
  readonly hasReasoningBegun?: boolean;
  readonly callsMax?: number;
  readonly tools?: readonly Tool[];
}

export function newParser(format: CallFormat | undefined, options: ParseOptions = {}): OutputParser {
  return new OutputParser({
    reasoning: options.reasoning,
    hasReasoningBegun: options.hasReasoningBegun ?? false,
    calls: format === undefined ? undefined : { format, tools: options.tools ?? tools },
    callsMax: options.callsMax ?? Number.POSITIVE_INFINITY,
  });
}

/** Parses an output in pieces. */
export function parse(pieces: readonly string[], parser: OutputParser): Parsed {
  let [text, reasoning] = ['', ''];
  const calls: { name: string; arguments: string }[] = [];
  const add = (each: { text: string; reasoning: string; calls: readonly ToolCallPiece[] }): void => {
    text += each.text;
    reasoning += each.reasoning;
    for (const { index, name, arguments: args } of each.calls) {
      if (name !== undefined) calls[index] = { name, arguments: '' };
      const call = calls[index];
      if (call === undefined) throw new Error(`call ${index} has no name`);
      call.arguments += args;
    }
  };
  for (const piece of pieces) add(parser.push(piece));
  add(parser.finish());
  return { text, reasoning, calls };
}

/** The text cut at offsets. */
export function cut(text: string, offsets: readonly number[]): string[] {
  const at = [...new Set(offsets.map((offset) => offset % (text.length + 1)))].sort((a, b) => a - b);
  return [0, ...at].map((from, i) => text.slice(from, at[i] ?? text.length));
}
