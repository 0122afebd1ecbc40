// Invalid values of every request field: wrong types, out of range, too many, too long.
import type { MutationRandom } from '../fuzz/mutation-random.ts';

/** Limits that the server under test reports. */
export interface ServedFacts {
  readonly model: string;
  readonly vocabSize: number;
  readonly contextTokens: number;
  readonly bodyBytesMax: number;
}

export const word = (prng: MutationRandom): string =>
  Array.from({ length: 1 + prng.below(10) }, () => String.fromCharCode(97 + prng.below(26))).join('');

const noNumber = [
  '"1"',
  '"NaN"',
  '"-Infinity"',
  '"0x10"',
  '""',
  'true',
  'false',
  '[]',
  '{}',
  '[1]',
  '{"a":1}',
  '1e999',
];
const noInteger = [...noNumber, '0.5', '1.0000001', '-3.75', '1e-7'];
const noFlag = ['0', '1', '"true"', '"false"', '""', '[]', '{}', '-1e300', '[true]'];
const noText = ['0', '-1.5', 'true', 'false', '[]', '{}', '["x"]', '1e308'];

type Fault = (prng: MutationRandom, facts: ServedFacts) => string;
const among =
  (...values: readonly string[]): Fault =>
  (prng) =>
    prng.pick(values);
/** A wrong type, or a number outside [low, high]. */
const number =
  (low: number, high: number, wrong = noNumber): Fault =>
  (prng) => {
    const outside = [String(high + prng.real(0.001, 1000)), String(low - prng.real(0.001, 1000)), '1e308', '-1e308'];
    return prng.pick(prng.below(2) === 0 ? wrong : outside);
  };
const integer = (low: number, high: number): Fault => {
  const outOfRange: Fault = (prng) =>
    prng.pick([`${low - 1 - prng.below(1e6)}`, ...(high < 1e15 ? [`${high + 1 + prng.below(1e6)}`] : []), '-1e300']);
  return (prng, facts) => (prng.below(2) === 0 ? prng.pick(noInteger) : outOfRange(prng, facts));
};
const tokenList: Fault = (prng, { vocabSize }) =>
  prng.pick([
    ...['1', '"1"', '{}', '[-1]', '["1"]', '[1.5]', '[[1]]', '[1e300]', '[true]', `[${'1,'.repeat(64)}1]`],
    `[${vocabSize + prng.below(1e6)}]`,
    `[1,2,${2 ** 31 + prng.below(1e6)}]`,
  ]);

const stops: Fault = (prng) =>
  prng.pick([
    ...['0', 'true', '{}', '[""]', '[1]', '[[]]', '["a",{}]', `[${Array(17).fill('"x"').join()}]`],
    `"${'x'.repeat(1025 + prng.below(3000))}"`,
  ]);

const biases: Fault = (prng, { vocabSize }) =>
  prng.pick([
    ...['1', '"x"', '[1]', 'true', '{"x":1}', '{"-1":1}', '{"05":1}', '{"1.5":1}', '{"1e3":1}', '{"":1}', '{"5":"1"}'],
    ...[
      '{"5":{}}',
      '{"5":100.5}',
      '{"5":-101}',
      '{"5":1e999}',
      '{"__proto__":1}',
      '{" 5":1}',
      '{"99999999999999999":1}',
    ],
    `{"${vocabSize + prng.below(1e6)}":${prng.real(-100, 100)}}`,
  ]);

const streamOptions: Fault = among(
  ...['1', 'true', '"x"', '[1]', '{"include_usage":1}', '{"include_usage":"true"}', '{"include_obfuscation":true}'],
  ...['{"x":1}', '{"include_usage":true,"constructor":1}', '{"__proto__":{"include_usage":true}}'],
);

const responseFormats: Fault = among(
  ...[
    '"text"',
    '[]',
    '{}',
    '{"type":["text"]}',
    '1',
    '{"type":"grammar"}',
    '{"Type":"text"}',
    '{"type":"json_schema"}',
  ],
  ...[
    '{"type":"json_schema","json_schema":{"name":"a"}}',
    '{"type":"text","x":1}',
    '{"type":"json_object","schema":{}}',
  ],
  '{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"objec"}}}',
  '{"type":"json_schema","json_schema":{"name":"a","schema":{"$ref":"#/$defs/x"}}}',
  '{"type":"json_schema","json_schema":{"name":"a b","schema":{}}}',
);

const structuredOutputs: Fault = among(
  ...['"x"', '[]', '{}', '1', '{"json":{},"regex":"a"}', '{"regex":1}', '{"choice":[]}', '{"choice":[1]}', '{"x":1}'],
  ...['{"json":"{"}', '{"json":{"not":{}}}', '{"json_object":false}', '{"grammar":""}', '{"structural_tag":"x"}'],
);

/** Faults of fields that both endpoints share. */
const sharedFaults: Readonly<Record<string, Fault>> = {
  model: among(...noText, '{"id":"x"}'),
  temperature: number(0, 2),
  top_p: number(0, 1, [...noNumber, '0']),
  top_k: integer(-1, Number.MAX_SAFE_INTEGER),
  min_p: number(0, 1),
  repetition_penalty: number(0.01, 10, [...noNumber, '0', '1e-300']),
  frequency_penalty: number(-2, 2),
  presence_penalty: number(-2, 2),
  logit_bias: biases,
  seed: among(...noInteger, '1e300', '-1e30'),
  n: integer(1, 16),
  stop: stops,
  stop_token_ids: tokenList,
  ignore_eos: among(...noFlag),
  response_format: responseFormats,
  structured_outputs: structuredOutputs,
  min_tokens: among(...noInteger, '-1', '100000'),
  stream: among(...noFlag),
  stream_options: streamOptions,
  return_token_ids: among(...noFlag),
  skip_special_tokens: among(...noFlag),
  return_tokens_as_token_ids: among(...noFlag),
  cache_salt: (prng) => prng.pick([...noText, `"${'s'.repeat(257 + prng.below(1000))}"`]),
  priority: integer(-1000, 1000),
};

const messages: Fault = (prng) => {
  const user = `{"role":"user","content":"${word(prng)}"}`;
  const content = prng.pick([
    ...['0', 'true', '{}', '[1]', '["x"]', '[{}]', '[{"type":"text"}]', '[{"type":"text","text":1}]', '[[]]'],
    ...['[{"type":"image_url","image_url":{"url":"http://x"}}]', '[{"type":"input_audio","input_audio":{}}]'],
    ...[
      '[{"type":"text","text":"x","cache":{"a":1}}]',
      '[{"type":"text","text":"a"},{"type":"refusal","refusal":"x"}]',
    ],
  ]);
  const member = prng.pick([
    ...['"tool_calls":[{"id":"1"}]', '"function_call":{"name":"f"}', '"audio":{"id":"1"}', '"name":1', '"name":{}'],
    ...['"refusal":"no"', '"prefix":true', `"${word(prng)}_":1`, '"__proto__":{"a":1}', '"constructor":{"a":1}'],
    ...['"reasoning_content":1', '"tool_call_id":"1"', '"weight":0', '"tool_calls":{}'],
    ...['"tool_calls":[{"id":"1","type":"function","function":{"name":"f"}}]', '"tool_calls":[null]'],
  ]);
  const role = prng.pick([
    '"tool"',
    '"function"',
    '"root"',
    '""',
    '1',
    'true',
    '{}',
    '"User"',
    '["user"]',
    '"__proto__"',
  ]);
  const bad = prng.pick([
    ...['1', '"x"', 'true', '[]', '{}', '{"role":"user"}', '{"content":"x"}', '{"role":"user","content":null}'],
    ...[
      `{"role":"user","content":${content}}`,
      `{"role":"user","content":"x",${member}}`,
      `{"role":${role},"content":"x"}`,
    ],
    ...[`{"role":"assistant","content":${content}}`, `{"role":"system","content":"x",${member}}`],
  ]);
  const list = [...Array<string>(prng.below(4)).fill(user), bad, ...Array<string>(prng.below(3)).fill(user)];
  return prng.below(6) === 0 ? prng.pick(['1', '"x"', 'true', '{}', '[]', 'null', '{"0":{}}']) : `[${list.join()}]`;
};

const tools: Fault = (prng) => {
  const good = '{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}';
  const bad = prng.pick([
    ...['{}', '1', 'null', '[]', '"f"', '{"type":"function"}', '{"type":"retrieval"}', '{"function":{"name":"f"}}'],
    ...['"name":""', '"name":1', '"name":"a b"', `"name":"${'n'.repeat(129)}"`, '"description":"x"'].map(
      (member) => `{"type":"function","function":{${member}}}`,
    ),
    ...['"parameters":1', '"parameters":[]', '"strict":1', '"description":{}', '"returns":{"a":1}'].map(
      (member) => `{"type":"function","function":{"name":"f",${member}}}`,
    ),
  ]);
  return prng.pick([`[${bad}]`, `[${good},${bad}]`, '{}', '1', '"auto"', 'true']);
};

export const chatFaults: Readonly<Record<string, Fault>> = {
  ...sharedFaults,
  messages,
  max_tokens: integer(1, Number.MAX_SAFE_INTEGER),
  max_completion_tokens: integer(1, Number.MAX_SAFE_INTEGER),
  logprobs: among(...noFlag),
  add_generation_prompt: among(...noFlag),
  continue_final_message: among(...noFlag),
  reasoning_effort: among(...noText),
  reasoning_format: among(...noText, '"maybe"'),
  tools,
  tool_choice: among(
    ...['"required"', '{"type":"function","function":{"name":"f"}}', '1', '[]', '""', 'true', '"any"'],
    ...['{"type":"function"}', '{"type":"tool","name":"f"}', '{"type":"function","function":{"name":""}}'],
  ),
  parallel_tool_calls: among(...noFlag),
  top_logprobs: integer(0, 20),
};

const prompts: Fault = (prng, { vocabSize }) =>
  prng.pick([
    ...[
      '1',
      'true',
      '{}',
      '[]',
      'null',
      '[[]]',
      '[{}]',
      '[true]',
      '["a",1]',
      '[1,"a"]',
      '[[1],2]',
      '[[1],["a"]]',
      '[1,[2]]',
    ],
    ...[
      '[-1]',
      '[1.5]',
      '[1e300]',
      '[[1],[]]',
      '["a",["b"]]',
      '[null]',
      '[1,null]',
      '{"text":"x"}',
      '[[[1]]]',
      '[1e999]',
    ],
    `[${vocabSize + prng.below(1e9)}]`,
    `[1,${2 ** 32 + prng.below(vocabSize)}]`,
    `[[1],[2,${vocabSize}]]`,
  ]);

export const completionFaults: Readonly<Record<string, Fault>> = {
  ...sharedFaults,
  prompt: prompts,
  max_tokens: integer(0, Number.MAX_SAFE_INTEGER),
  logprobs: integer(0, 20),
  echo: among(...noFlag),
};

/** Fields of chats with values that completions do not support. */
export const unsupportedInCompletions: Readonly<Record<string, readonly string[]>> = {
  tools: ['[{"type":"function","function":{"name":"f","parameters":{}}}]', '{}', '1', '"auto"', '[[]]', '[null]'],
  tool_choice: ['"required"', '{"type":"function","function":{"name":"f"}}', '1', '[]', '""', 'true'],
};

/** Known fields with unsupported values. */
export const unsupported: Readonly<Record<string, readonly string[]>> = {
  functions: ['[{"name":"f"}]', '{}', 'true', '"f"'],
  function_call: ['{"name":"f"}', '"f"', '0'],
  modalities: ['["audio"]', '["text","audio"]', '"text"', '{}', '1'],
  audio: ['{"voice":"alloy","format":"wav"}', '1'],
  prediction: ['{"type":"content","content":"x"}'],
  web_search_options: ['{"search_context_size":"low"}'],
  store: ['true', '1', '"false"', '{}'],
  service_tier: ['"flex"', '"priority"', '1'],
  verbosity: ['"low"', '"high"', '3'],
  suffix: ['"end"', '1', '[]'],
  best_of: ['2', '0', '"1"', '[]'],
  use_beam_search: ['true', '1'],
  length_penalty: ['2', '0', '"1"'],
  include_stop_str_in_output: ['true'],
  guided_json: ['{"type":"object"}'],
  chat_template: ['"{{ 1 }}"'],
  mirostat: ['1'],
};
