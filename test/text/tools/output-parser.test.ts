// The parser of outputs: calls, reasoning and text are the same however the output is split into pieces.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Call, callsOf, cut, newParser, outputOf, type Parsed, parse } from './formats.ts';
import { type ToolTemplateName, toolTemplates } from './templates.ts';

const names = Object.keys(toolTemplates) as ToolTemplateName[];
const think = { open: '<think>', close: '</think>' };

/** Texts with quotes, brackets, beginnings of markers, and characters of several units. */
const text = fc
  .array(
    fc.constantFrom(
      'a',
      ' ',
      '\n',
      '"',
      '\\',
      '{',
      '}',
      '[',
      ']',
      '<',
      '</',
      '<tool',
      '>',
      'é',
      '語',
      '🦊',
      ',',
      ':',
      ';',
    ),
    { maxLength: 12 },
  )
  .map((parts) => parts.join(''));
/** Values that templates write as they are lose white space around them. */
const place = text.map((value) => `x${value}x`);
const value = fc.oneof(
  fc.integer(),
  fc.boolean(),
  fc.constant(null),
  fc.array(fc.integer(), { maxLength: 3 }),
  fc.dictionary(fc.constantFrom('k', 'é"', '}'), fc.oneof(fc.integer(), text), { maxKeys: 3 }),
);
const call: fc.Arbitrary<Call> = fc.oneof(
  fc
    .record({ place, days: fc.integer(), more: value }, { requiredKeys: ['place'] })
    .map((args) => ({ name: 'get_weather', arguments: { ...args } })),
  fc.record({ a: fc.integer() }, { requiredKeys: [] }).map((args) => ({ name: 'add', arguments: { ...args } })),
);
const offsets = fc.array(fc.nat(2000), { maxLength: 30 });

const read = ({ text, reasoning, calls }: Parsed) => ({
  text,
  reasoning,
  calls: calls.map((each) => ({ name: each.name, arguments: JSON.parse(each.arguments) as unknown })),
});

describe.each(names)('calls of %s', (name) => {
  const { format } = callsOf(name);
  const isPlain = format.shape.kind === 'pairs';
  const hasMarker = name !== 'llama3';

  it('are read as they were, in any pieces, after text', () => {
    const check = (calls: readonly Call[], before: string, at: readonly number[]): void => {
      // Values in markers of their own end at the marker.
      fc.pre(!isPlain || !JSON.stringify(calls).includes('</'));
      const made = format.isParallel ? calls : calls.slice(0, 1);
      const output = outputOf(name, made).replace('<think>\n\n</think>\n\n', '');
      const lead = hasMarker ? before : '';
      const parsed = parse(cut(lead + output, at), newParser(format));
      const kept = lead.trimEnd();
      expect(read(parsed)).toEqual({ text: kept, reasoning: '', calls: made });
      expect(parse([...(lead + output)], newParser(format))).toEqual(parsed);
    };
    const before = fc.constantFrom('', 'Let me see.', 'I call:\n\n', '  a < b <tool_ {"x": 1} \n');
    fc.assert(fc.property(fc.array(call, { minLength: 1, maxLength: 3 }), before, offsets, check), { numRuns: 6 });
  });

  it('may be cut off: what is there is passed on, and nothing else', () => {
    const output = outputOf(name, [{ name: 'get_weather', arguments: { place: 'Þórshöfn "x"', days: 3 } }]);
    const whole = parse([output], newParser(format)).calls[0]?.arguments ?? '';
    for (let end = 0; end <= output.length; end += 5) {
      const { calls, text: rest } = parse(cut(output.slice(0, end), [end >> 1]), newParser(format));
      const args = calls[0]?.arguments ?? '';
      // A marker that nothing follows is text.
      expect(calls.length === 0 ? rest : '').toBe(calls.length === 0 ? output.slice(0, end) : '');
      expect(whole.startsWith(args) || `${args}}` === whole || args === '{}' || isPlain).toBe(true);
    }
  });
});

describe('text', () => {
  const piece = fc.constantFrom(
    ...['<', '<tool_call', '<tool_call>', '</tool_call>', '[TOOL_CALLS]', '[TOOL', '<|tool_call|>', '<function=', ' '],
    ...['\n', 'x', '{', '"name"', '[', '<think>', '</think>', 'get_weather', '🦊'],
  );

  it.each(names)('that only resembles calls of %s is returned as it is', (name) => {
    const { format } = callsOf(name);
    const check = (parts: readonly string[], at: readonly number[]): void => {
      const output = parts.join('');
      // The name alone begins a call where nothing must follow it.
      fc.pre(name !== 'glm' || !/<tool_call>\s*\w/.test(output));
      expect(parse(cut(output, at), newParser(format))).toEqual({ text: output, reasoning: '', calls: [] });
    };
    fc.assert(fc.property(fc.array(piece, { maxLength: 12 }), offsets, check), { numRuns: 20 });
  });

  it('is held back only while it may become a call', () => {
    const parser = newParser(callsOf('hermes').format);
    expect(parser.push('see <tool').text).toBe('see');
    expect(parser.push('box> and').text).toBe(' <toolbox> and');
    expect(parser.push(' <tool_call>\n{"na').text).toBe('');
    expect(parser.push('vel": 1}').text).toBe(' <tool_call>\n{"navel": 1}');
    expect(parser.finish()).toEqual({ text: '', reasoning: '', calls: [] });
  });

  it('between and after calls stays text, without the white space beside calls', () => {
    const output =
      'A\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\nB\n<tool_call>{"name": "add"}</tool_call>\n';
    expect(parse([output], newParser(callsOf('hermes').format))).toEqual({
      text: 'A\nB',
      reasoning: '',
      calls: [
        { name: 'add', arguments: '{}' },
        { name: 'add', arguments: '{}' },
      ],
    });
  });

  it('without a marker is a call only if it is the answer, and names a tool', () => {
    const { format } = callsOf('llama3');
    const json = '{"name": "get_weather", "parameters": {"place": "Oslo"}}';
    expect(parse([json], newParser(format)).calls).toHaveLength(1);
    for (const output of [`Here: ${json}`, json.replace('get_', 'set_'), '{"names": 1}', '{"name": 1}', '[1, 2]', '{'])
      expect(parse([output], newParser(format))).toEqual({ text: output, reasoning: '', calls: [] });
  });
});

describe('malformed calls', () => {
  const hermes = callsOf('hermes').format;
  it.each([
    ['arguments that are no JSON', '{"name": "add", "arguments": {a: 1,}}', '{a: 1,}'],
    ['a missing bracket', '{"name": "add", "arguments": {"a": {"b": 1}', '{"a": {"b": 1}'],
    ['a missing last bracket', '{"name": "add", "arguments": {"a": 1}', '{"a": 1}'],
    ['superfluous brackets', '{"name": "add", "arguments": {"a": 1}}}}', '{"a": 1}'],
    ['arguments before the name', '{"arguments": {"a": 1}, "name": "add"}', '{"a": 1}'],
    ['arguments as text', '{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'],
    ['arguments as null', '{"name": "add", "arguments": null}', '{}'],
    ['members of other formats', '{"type": "function", "name": "add", "parameters": {"a": 1}}', '{"a": 1}'],
    ['a function inside', '{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}', '{"a": 1}'],
    ['a marker inside a text', '{"name": "add", "arguments": {"a": "</tool_call>"}}', '{"a": "</tool_call>"}'],
    ['something after the arguments', '{"name": "add", "arguments": {"a": 1}; done', '{"a": 1}'],
  ])('%s: the arguments are passed on as they are', (_, body, expected) => {
    for (const close of ['\n</tool_call>', '</tool_call> bye']) {
      const output = `<tool_call>\n${body}${close}`;
      for (const pieces of [[output], [...output]]) {
        const { text: rest, calls } = parse(pieces, newParser(hermes));
        expect(rest).toBe(close.endsWith('bye') ? ' bye' : '');
        expect(calls.map(({ name, arguments: args }) => [name, args.trimEnd()])).toEqual([['add', expected]]);
      }
    }
  });

  it('a list of calls where the format has objects, and an object where it has a list', () => {
    const one = '{"name": "add", "arguments": {"a": 1}}';
    expect(parse([`[TOOL_CALLS]${one}`], newParser(callsOf('mistralNemo').format)).calls).toHaveLength(1);
    expect(parse([`<|tool_call|>[${one}, ${one}]`], newParser(callsOf('phi4Mini').format)).calls).toHaveLength(2);
    expect(parse([`${one}; ${one}`], newParser(callsOf('llama3').format)).calls).toHaveLength(2);
  });

  it('values of Python calls become JSON', () => {
    const { format } = callsOf('pythonic');
    const made = [
      "[get_weather(place='It\\'s \\x41\\u00e9', days = 3, more={'a': (1, None), 'b': [True]}), add()]",
      '[get_weather(place=Þórshöfn, days=x)] bye',
    ].map((output) => parse([...output], newParser(format)));
    expect(
      made.map(({ text: rest, calls }) => [rest, calls.map((each) => JSON.parse(each.arguments) as unknown)]),
    ).toEqual([
      ['', [{ place: "It's Aé", days: 3, more: { a: [1, null], b: [true] } }, {}]],
      [' bye', [{ place: 'Þórshöfn', days: 'x' }]],
    ]);
    for (const output of ['[get_water(place=1)]', '[get_weather]', '[1, 2]'])
      expect(parse([output], newParser(format))).toEqual({ text: output, reasoning: '', calls: [] });
  });

  it('positional arguments of Python calls take the next properties, and one too many is dropped', () => {
    const { format } = callsOf('pythonic');
    const callsIn = (output: string) => {
      const parsed = [parse([output], newParser(format)), parse([...output], newParser(format))];
      expect(parsed[1]).toEqual(parsed[0]);
      return [parsed[0]?.text, ...(parsed[0]?.calls ?? []).map((each) => JSON.parse(each.arguments) as unknown)];
    };
    expect(callsIn("[get_weather('Oslo'), add()] bye")).toEqual([' bye', { place: 'Oslo' }, {}]);
    expect(callsIn('[get_weather("a=b", days=3), add(1, 2)] x = 1')).toEqual([
      ' x = 1',
      { place: 'a=b', days: 3 },
      { a: 1 },
    ]);
    expect(callsIn('[get_weather(days=3, "Oslo")]')).toEqual(['', { days: 3, place: 'Oslo' }]);
    expect(callsIn('[get_weather("Oslo')).toEqual(['', {}]);
  });

  it('values in tags get the types of the schema', () => {
    const value = (name: string, written: string) => `<parameter=${name}>\n${written}\n</parameter>\n`;
    const body = value('place', '17') + value('days', ' 3 ') + value('more', 'True') + value('other', '{"x": [1]}');
    const output = `<tool_call>\n<function=get_weather>\n${body}${value('why', 'a\n"b"')}</function>\n</tool_call>`;
    const [only] = parse([...output], newParser(callsOf('qwen3Coder').format)).calls;
    expect(JSON.parse(only?.arguments ?? '')).toEqual({
      place: '17',
      days: 3,
      more: true,
      other: { x: [1] },
      why: 'a\n"b"',
    });
  });
});

describe('reasoning', () => {
  const { format } = callsOf('qwen3');

  it('is separated from text and calls in any pieces', () => {
    const check = (before: string, at: readonly number[], hasBegun: boolean): void => {
      fc.pre(!before.includes('</think>'));
      const output = `${hasBegun ? '' : '<think>\n'}${before}\n</think>\n\nHi.\n${outputOf('hermes', [{ name: 'add', arguments: { a: 1 } }])}`;
      const options = { reasoning: think, hasReasoningBegun: hasBegun };
      const expected = { text: 'Hi.', reasoning: before.trim(), calls: [{ name: 'add', arguments: '{"a": 1}' }] };
      expect(parse(cut(output, at), newParser(format, options))).toEqual(expected);
    };
    fc.assert(fc.property(text, offsets, fc.boolean(), check), { numRuns: 20 });
  });

  it('without an end is all reasoning, and markers after the beginning are text', () => {
    const parsed = (output: string, hasReasoningBegun = false) =>
      parse([...output], newParser(undefined, { reasoning: think, hasReasoningBegun }));
    expect(parsed('<think>a\n b</thin')).toEqual({ text: '', reasoning: 'a\n b</thin', calls: [] });
    expect(parsed('a', true)).toEqual({ text: '', reasoning: 'a', calls: [] });
    expect(parsed('\n</think>\n\nb', true)).toEqual({ text: 'b', reasoning: '', calls: [] });
    expect(parsed('a <think>b</think>')).toEqual({ text: 'a <think>b</think>', reasoning: '', calls: [] });
    expect(parsed(' <thin')).toEqual({ text: ' <thin', reasoning: '', calls: [] });
  });
});

describe('special tokens', () => {
  it('are markers, and no text where they begin no call', () => {
    const { format } = callsOf('mistralNemo');
    const parser = newParser(format);
    expect(parser.push('[TOOL_CALLS]', true).text).toBe('');
    expect(parser.push(' are calls').text).toBe(' are calls');
    parser.push('[TOOL_CALLS]', true);
    expect(parser.push('[{"name": "add", "arguments": {"a": 1}}]').calls).toEqual([
      { index: 0, name: 'add', arguments: '{"a": 1}' },
    ]);
  });
});

it('ends after the last call that may be made', () => {
  const parser = newParser(callsOf('hermes').format, { callsMax: 1 });
  const one = outputOf('hermes', [{ name: 'add', arguments: {} }]);
  expect(parser.push(one).calls).toHaveLength(1);
  expect(parser.hasEnded).toBe(true);
  expect(parser.push(`\n${one} more`)).toEqual({ text: '', reasoning: '', calls: [] });
});

it('reports the part of each character', () => {
  const parser = newParser(callsOf('qwen3').format, { reasoning: think });
  const output = '<think>why</think>\n\nYes\n<tool_call>{"name": "add"}</tool_call> ok';
  parser.push(output);
  parser.finish();
  const parts = Array.from(output, (_, offset) => parser.partAt(offset)[0]).join('');
  expect(parser.settled).toBe(output.length);
  expect(parts).toBe(`${'r'.repeat(20)}ttt${'c'.repeat(39)}ttt`);
});
