// Parsing traces: formats, pieces cut anywhere, and invalid lines.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Labels } from '../../src/trace/labels.ts';
import { mooncakeLine } from '../../src/trace/mooncake.ts';
import { TraceParser } from '../../src/trace/parser.ts';
import type { TraceRequest } from '../../src/trace/request.ts';

function parse(text: string, blockTokens = 512): TraceRequest[] {
  const parser = new TraceParser({ blockTokens });
  const out: TraceRequest[] = [];
  parser.push(text, out);
  parser.end(out);
  return out;
}

const line = (timestamp: number, input: number, output: number, ids: readonly number[]) =>
  JSON.stringify({ timestamp, input_length: input, output_length: output, hash_ids: ids });

const mooncake = [line(0, 513, 1, [0, 1]), line(27.5, 512, 7, [0]), '', line(3000, 1030, 2, [0, 1, 2])].join('\r\n');
const azure = [
  'TIMESTAMP,ContextTokens,GeneratedTokens',
  '2024-02-28 23:59:59.9999999,10,1',
  '2024-02-29 00:00:00.0000010,11,2',
  '2024-03-01 00:00:00,12,3',
].join('\n');

describe('traces', () => {
  it('reads Mooncake lines', () => {
    expect(parse(mooncake)).toEqual([
      { index: 0, arrivalUs: 0, inputTokens: 513, outputTokens: 1, blocks: Int32Array.of(0, 1) },
      { index: 1, arrivalUs: 27_500, inputTokens: 512, outputTokens: 7, blocks: Int32Array.of(0) },
      { index: 2, arrivalUs: 3_000_000, inputTokens: 1030, outputTokens: 2, blocks: Int32Array.of(0, 1, 2) },
    ]);
  });

  it('reads tenant, class and priority of a request, and writes the same line', () => {
    const labelled =
      '{"timestamp":5,"input_length":9,"output_length":2,"hash_ids":[3],"slo_class":"chat","tenant":"a","priority":-2}';
    const [request] = parse(labelled);
    expect(request).toMatchObject({ sloClass: 'chat', tenant: 'a', priority: -2 });
    expect(request && mooncakeLine(request)).toBe(labelled);
    for (const [field, value] of [
      ['slo_class', 7],
      ['tenant', ''],
      ['priority', 0.5],
    ]) {
      const text = JSON.stringify({ timestamp: 0, input_length: 1, output_length: 1, [String(field)]: value });
      expect(() => parse(text)).toThrow(new RegExp(`^Cannot read the trace: line 1: ${field} is `));
    }
  });

  it('draws missing labels by share, the same for the same seed', () => {
    const settings = {
      classes: [
        { name: 'chat', share: 3 },
        { name: 'batch', share: 1 },
      ],
      tenants: [],
      priorities: new Map([['chat', 5]]),
      seed: 7,
    };
    const plain = { arrivalUs: 0, inputTokens: 1, outputTokens: 1, blocks: new Int32Array(0) };
    const draw = (seed: number) => {
      const labels = new Labels({ ...settings, seed });
      return Array.from({ length: 4000 }, (_, index) => labels.take({ ...plain, index }));
    };
    const drawn = draw(7);
    const chat = drawn.filter(({ sloClass }) => sloClass === 'chat');
    expect(chat.length / drawn.length).toBeCloseTo(0.75, 1);
    expect(new Set(chat.map(({ priority }) => priority))).toEqual(new Set([5]));
    expect(draw(7)).toEqual(drawn);
    expect(draw(8)).not.toEqual(drawn);
    expect(new Labels(settings).take({ ...plain, index: 0, sloClass: 'own' }).sloClass).toBe('own');
  });

  it('reads Azure rows, counting from the first, over a leap day', () => {
    const none = new Int32Array(0);
    expect(parse(azure)).toEqual([
      { index: 0, arrivalUs: 0, inputTokens: 10, outputTokens: 1, blocks: none },
      { index: 1, arrivalUs: 2, inputTokens: 11, outputTokens: 2, blocks: none },
      { index: 2, arrivalUs: 86_400_000_001, inputTokens: 12, outputTokens: 3, blocks: none },
    ]);
  });

  it('accepts text in pieces cut anywhere', () => {
    fc.assert(
      fc.property(fc.constantFrom(mooncake, azure), fc.array(fc.nat(400), { maxLength: 8 }), (text, cuts) => {
        const parser = new TraceParser({ blockTokens: 512 });
        const out: TraceRequest[] = [];
        const at = [0, ...cuts.filter((cut) => cut < text.length).sort((a, b) => a - b), text.length];
        for (let i = 1; i < at.length; i++) parser.push(text.slice(at[i - 1], at[i]), out);
        parser.end(out);
        expect(out).toEqual(parse(text));
      }),
    );
  });

  const header = 'TIMESTAMP,ContextTokens,GeneratedTokens\n';
  it.each([
    ['', 'line 1: the file holds no request'],
    ['hello', 'line 1: neither a JSON object nor the header'],
    ['{"timestamp":', 'line 1: not JSON'],
    [`${line(0, 5, 1, [0])}\n[1]`, 'line 2: not a JSON object: [1]'],
    [line(-1, 5, 1, [0]), 'line 1: timestamp is -1'],
    ['{"input_length":5,"output_length":1}', 'line 1: timestamp is missing'],
    [line(0, 0, 1, []), 'line 1: input_length is 0'],
    [line(0, 5, 1.5, [0]), 'line 1: output_length is 1.5'],
    [line(0, 5, 1, [0, 1]), 'line 1: hash_ids has 2 ids: 1 expected for 5 tokens in blocks of 512'],
    [line(0, 513, 1, [0, 2 ** 31]), 'line 1: hash_ids[1] is 2147483648'],
    [line(0, 5, 1, [0]).replace('[0]', '["0"]'), 'line 1: hash_ids[0] is "0"'],
    [line(0, 5, 1, [0]).replace('[0]', '7'), 'line 1: hash_ids is 7'],
    [`${line(5, 5, 1, [0])}\n${line(4, 5, 1, [0])}`, 'line 2: time stamps are out of order: 4000 us after 5000 us'],
    [`${header}2024-01-01 00:00:00,5`, 'line 2: 2 cells'],
    [`${header}2024-13-01 00:00:00,5,5`, 'line 2: TIMESTAMP is "2024-13-01 00:00:00"'],
    [`${header}2024-01-01 00:00:00,x,5`, 'line 2: ContextTokens is "x"'],
    [`${header}2024-01-01 00:00:00,5,0`, 'line 2: GeneratedTokens is "0"'],
    [`${header}2024-01-02 00:00:00,5,5\n2024-01-01 00:00:00,5,5`, 'line 3: TIMESTAMP is "2024-01-01 00:00:00"'],
  ])('refuses %j', (text, why) => {
    expect(() => parse(text)).toThrow(`Cannot read the trace: ${why}`);
  });
});
