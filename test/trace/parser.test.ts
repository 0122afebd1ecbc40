// Parsing traces: formats, pieces cut anywhere, and invalid lines.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Labels } from '../../src/trace/labels.ts';
import { firstMooncakeLine, mooncakeLine } from '../../src/trace/mooncake.ts';
import { TraceParser } from '../../src/trace/parser.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import type { TimeUnit } from '../../src/trace/time-unit.ts';

function parse(text: string, blockTokens = 512, timeUnit?: TimeUnit): TraceRequest[] {
  const parser = new TraceParser({ blockTokens, timeUnit });
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

  it('reads BurstGPT rows in seconds, from the first, without requests that failed', () => {
    const burst = [
      'Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type',
      '5,1013,2.5,ChatGPT,472,18,490,Conversation log',
      '45.25,1013,1,GPT-4,1087,0,1087,API log',
      '118,1014,3,GPT-4,417,276,693,Conversation log',
    ].join('\n');
    expect(parse(burst)).toMatchObject([
      { index: 0, arrivalUs: 0, inputTokens: 472, outputTokens: 18 },
      { index: 1, arrivalUs: 113_000_000, inputTokens: 417, outputTokens: 276 },
    ]);
    const parser = new TraceParser({ blockTokens: 512 });
    parser.push(burst, []);
    expect(parser.source).toEqual({ format: 'BurstGPT CSV', timeUnit: 's', failedRows: 1 });
  });

  it('reads Vidur rows in seconds, or in the unit that is stated', () => {
    const vidur = 'arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n2.105,396,109.0';
    expect(parse(vidur)).toMatchObject([
      { arrivalUs: 0, inputTokens: 374, outputTokens: 44 },
      { arrivalUs: 2_105_000, inputTokens: 396, outputTokens: 109 },
    ]);
    expect(parse(vidur, 512, 'ms').at(-1)).toMatchObject({ arrivalUs: 2105 });
  });

  const chat = (timestamp: number, input: number, ids: readonly number[]) =>
    `{"chat_id":7,"parent_chat_id":-1,"timestamp":${timestamp},"input_length":${input},"output_length":3,"type":"text","turn":1,"hash_ids":[${ids}]}`;

  it('reads Bailian lines in seconds, and groups their blocks of 16 tokens', () => {
    const far = 2 ** 40;
    const lines = [chat(61.1, 70, [1, 2, 3, 4, 5]), chat(62, 64, [1, 2, 3, 9]), chat(63.5, 64, [far, 2, 3, 4])].join(
      '\n',
    );
    expect(parse(lines, 32)).toMatchObject([
      { arrivalUs: 0, inputTokens: 70, outputTokens: 3, blocks: Int32Array.of(0, 1, 2) },
      { arrivalUs: 900_000, blocks: Int32Array.of(0, 3) },
      // Its second block is equal to that of the first prompt, behind another prefix.
      { arrivalUs: 2_400_000, blocks: Int32Array.of(4, 5) },
    ]);
    expect(parse(lines, 16).map(({ blocks }) => blocks.length)).toEqual([5, 4, 4]);
    expect(() => parse(lines, 24)).toThrow('hash_ids are of 16 tokens: use --block-tokens 16 or a multiple, not 24');
    expect(() => parse(chat(0, 16, [1, 2]))).toThrow('hash_ids has 2 ids: 1 expected for 16 tokens');
  });

  it('refuses times whose unit is implausible, unless the unit is stated', () => {
    const rows = Array.from({ length: 40 }, (_, i) => line(i, 5, 1, [0])).join('\n');
    expect(() => parse(rows)).toThrow(
      'line 40: timestamp: 40 requests in 0.039 s if read as milliseconds: use --time-unit s, or --time-unit ms if',
    );
    const [first, ...rest] = parse(rows, 512, 'ms');
    const stated = [firstMooncakeLine(first), ...rest.map(mooncakeLine)];
    expect(parse(stated.join('\n'))).toEqual([first, ...rest]);
    expect(parse(stated.join('\n').replace('"ms"', '"s"')).at(-1)).toMatchObject({ arrivalUs: 39e6 });
    expect(() => parse(stated[0].replace('"ms"', '"h"'))).toThrow(
      'line 1: time_unit is "h": one of s, ms, us expected',
    );
    expect(parse(rows, 512, 's').at(-1)).toMatchObject({ arrivalUs: 39e6 });
    expect(parse(rows, 512, 'ms').at(-1)).toMatchObject({ arrivalUs: 39e3 });
    const vidur = Array.from({ length: 9 }, (_, i) => `${i * 7e6},9,9`).join('\n');
    expect(() => parse(`arrived_at,num_prefill_tokens,num_decode_tokens\n${vidur}`)).toThrow(
      'arrived_at: 9 requests in 56000000 s if read as seconds: use --time-unit us',
    );
    expect(() => parse(azure, 512, 's')).toThrow('--time-unit s has no meaning: TIMESTAMP has dates');
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
