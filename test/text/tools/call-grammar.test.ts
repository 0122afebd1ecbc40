// Grammars of calls against the outputs that the templates write: XGrammar accepts these and no others.
import { describe, expect, it } from 'vitest';
import { GrammarHost, grammarLimits } from '../../../src/runtime/grammars/grammar-host.ts';
import { createMaskMemory, maskStates } from '../../../src/runtime/grammars/grammar-protocol.ts';
import { callGrammar, grammarAfterReasoning, type TagFormat } from '../../../src/text/tools/call-grammar.ts';
import { callsOf, outputOf, tools } from './formats.ts';
import { type ToolTemplateName, toolTemplates } from './templates.ts';

const eos = 256;
const memory = createMaskMemory(1, 9);
const host = new GrammarHost(
  { size: 257, bytesOf: (id) => (id < 256 ? Uint8Array.of(id) : new Uint8Array()), eosIds: [eos] },
  memory,
  grammarLimits,
);
let number = 0;

/** A predicate of whole outputs. */
async function accepting(format: TagFormat): Promise<(output: string) => Promise<boolean>> {
  const text = JSON.stringify({ type: 'structural_tag', format });
  const grammar = ++number;
  const answer = await host.receive({
    kind: 'compile',
    number: grammar,
    grammar: { kind: 'structural_tag', text },
    keeps: true,
  });
  expect(answer).toMatchObject({ kind: 'compiled', fault: undefined });
  let request = 0;
  return async (output) => {
    const row = {
      request: `${grammar}-${++request}`,
      grammar,
      from: 0,
      tokens: Int32Array.from(new TextEncoder().encode(output)),
    };
    await host.receive({ kind: 'masks', batch: grammar * 100 + request, rows: [row] });
    return memory.control[1] === maskStates.ready && (((memory.masks[eos >> 5] ?? 0) >>> (eos & 31)) & 1) === 1;
  };
}

const calls = [
  { name: 'get_weather', arguments: { place: 'Þórshöfn "x"', days: 3 } },
  { name: 'add', arguments: {} },
];

describe.each(Object.keys(toolTemplates) as ToolTemplateName[])('the grammar of %s', (name) => {
  const { format } = callsOf(name);
  const made = format.isParallel ? calls : calls.slice(0, 1);
  const output = outputOf(name, made).replace('<think>\n\n</think>\n\n', '').trimStart();
  const wrong = output.replaceAll('get_weather', 'get_water');

  it('has the calls that the template writes, alone, in text, and after reasoning', async () => {
    const required = callGrammar({ format, tools, isInText: false, isParallel: true });
    const isRequired = await accepting(required);
    expect(await isRequired(output)).toBe(true);
    for (const other of [wrong, `Hi. ${output}`, 'Hi.', output.slice(0, -1)])
      expect(await isRequired(other)).toBe(false);
    const isText = await accepting(callGrammar({ format, tools, isInText: true, isParallel: true }));
    // A list of Python calls in text has one.
    const inText = format.shape.kind === 'python' ? outputOf(name, calls.slice(0, 1)) : output;
    for (const other of [inText, `Hi. ${inText}`, 'Hi. [1]']) expect(await isText(other)).toBe(true);
    // A bracket before another name is text.
    expect(await isText(wrong)).toBe(format.shape.kind === 'python');
    const begun = await accepting(grammarAfterReasoning(required, { open: '<think>', close: '</think>' }, true));
    expect(await begun(`I think.</think>\n\n${output}`)).toBe(true);
    expect(await begun(output)).toBe(false);
  });
});

it('has arguments whose schemas refer to definitions of the tool', async () => {
  const { format } = callsOf('qwen3Coder');
  const parameters = {
    type: 'object',
    properties: { size: { $ref: '#/$defs/size' } },
    required: ['size'],
    $defs: { size: { type: 'integer' } },
  };
  const sized = [{ name: 'resize', parameters }];
  const isRequired = await accepting(callGrammar({ format, tools: sized, isInText: false, isParallel: false }));
  const made = (size: unknown) => outputOf('qwen3Coder', [{ name: 'resize', arguments: { size } }]).trimStart();
  expect(await isRequired(made(3))).toBe(true);
  expect(await isRequired(made('large'))).toBe(false);
});
