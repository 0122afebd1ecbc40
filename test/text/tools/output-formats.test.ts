// Formats of calls and reasoning that are derived from chat templates.
import { describe, expect, it } from 'vitest';
import { markerOf } from '../../../src/text/tools/call-format.ts';
import { callsOf, formatsOf } from './formats.ts';
import { harmony, type ToolTemplateName, toolTemplates } from './templates.ts';

describe('the call format', () => {
  it.each<[ToolTemplateName, string, string, object]>([
    ['hermes', '<tool_call>', 'json', { isList: false, nameKey: 'name', argumentsKey: 'arguments' }],
    ['qwen3', '<tool_call>', 'json', { isList: false, nameKey: 'name', argumentsKey: 'arguments' }],
    ['llama3', '', 'json', { isList: false, nameKey: 'name', argumentsKey: 'parameters' }],
    ['mistralNemo', '[TOOL_CALLS]', 'json', { isList: true, nameKey: 'name', idAt: 9 }],
    ['mistralSmall', '[TOOL_CALLS]', 'named', { idOpen: '[CALL_ID]', nameEnd: '[ARGS]' }],
    ['qwen3Coder', '<tool_call>\n<function=', 'pairs', { nameEnd: '>', keyOpen: '\n<parameter=', keyEnd: '>\n' }],
    ['phi4Mini', '<|tool_call|>', 'json', { isList: true, nameKey: 'name', argumentsKey: 'arguments' }],
    ['deepSeek', '<｜tool▁calls▁begin｜>', 'named', { nameEnd: '\n```json\n' }],
    ['kimi', '<|tool_calls_section_begin|>', 'named', { idOpen: ':', nameEnd: '<|tool_call_argument_begin|>' }],
    ['deepSeekV31', '<｜tool▁calls▁begin｜>', 'named', { idOpen: undefined, nameEnd: '<｜tool▁sep｜>' }],
    ['pythonic', '[', 'python', {}],
    ['glm', '<tool_call>', 'pairs', { nameEnd: '', keyOpen: '\n<arg_key>', keyEnd: '</arg_key>\n<arg_value>' }],
  ])('of %s begins with %j and has the shape %s', (name, marker, kind, members) => {
    const { format } = callsOf(name);
    expect(markerOf(format)).toBe(marker);
    expect(format.shape).toMatchObject({ kind, ...members });
    expect(format.isParallel).toBe(name !== 'llama3');
  });

  it('has sections where the template writes markers around all calls', () => {
    expect(callsOf('deepSeek').format).toMatchObject({
      callOpen: '<｜tool▁call▁begin｜>function<｜tool▁sep｜>',
      callClose: '\n```<｜tool▁call▁end｜>',
      sectionClose: '<｜tool▁calls▁end｜>',
    });
    expect(callsOf('hermes').format).toMatchObject({ sectionOpen: '', callClose: '\n</tool_call>', separator: '\n' });
  });

  it('comes with the style of messages that the template accepts', () => {
    expect(callsOf('mistralNemo').style).toMatchObject({ ids: 'short', tools: 'variable' });
    expect(callsOf('kimi').style).toMatchObject({ ids: 'named' });
    expect(callsOf('phi4Mini').style).toMatchObject({ callsInContent: true, tools: 'system message' });
    expect(callsOf('hermes').style).toMatchObject({ ids: 'any', argumentsAs: 'object', emptyContent: '' });
  });

  it.each([
    ['of channels', harmony, 'begin without a marker'],
    ['without tools', '{% for m in messages %}{{ m.content }}{% endfor %}', 'it has no tools'],
    ['with tools but no calls', '{{ tools | tojson }}{{ messages[0].content }}', 'it does not write tool calls'],
    [
      'with calls but no tools',
      '{% for c in messages[-1].tool_calls %}{{ c | tojson }}{% endfor %}',
      'does not write the tools',
    ],
    [
      'with calls that cannot be told from text',
      '{{ tools | tojson }}{% for c in messages[-1].tool_calls %}call {{ c.function.name }} with {{ c.function.arguments | tojson }}{% endfor %}',
      'begin without a marker',
    ],
    [
      'with ids between markers',
      '{{ tools | tojson }}{% for c in messages[-1].tool_calls %}<call {{ c.id }}>{{ c.function | tojson }}</call>{% endfor %}',
      'ids where none can be read',
    ],
  ])('of a template %s is a problem', (_, source, problem) => {
    expect(formatsOf(source).calls).toEqual({ problem: expect.stringContaining(problem) });
  });
});

describe('the markers of reasoning', () => {
  const think = { open: '<think>', close: '</think>' };
  it.each([
    ['a template that writes reasoning_content', toolTemplates.qwen3, think],
    ['a template that removes reasoning from the history', toolTemplates.deepSeek, think],
    [
      'a template that writes empty reasoning where it is turned off',
      "{{ messages[0].content }}{% if enable_thinking is false %}{{ '[THINK][/THINK]' }}{% endif %}",
      undefined,
    ],
    [
      'a template with a switch',
      "{{ messages[0].content }}<a>{% if enable_thinking is false %}{{ '<|begin_of_thought|>\\n<|/end_of_thought|>' }}{% endif %}",
      { open: '<|begin_of_thought|>', close: '<|/end_of_thought|>' },
    ],
    ['a template without reasoning', toolTemplates.hermes, undefined],
    ['a template that only mentions it', '{# think #}{{ messages[0].content }}', undefined],
  ])('of %s', (_, source, expected) => {
    expect(formatsOf(source).reasoning).toEqual(expected);
  });
});
