// Malformed requests by grammar: each has exactly one fault, which its answer has to name.

/** A request with one fault, and what its refusal must say. */
export interface Malformed {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array | string;
  readonly status: number;
  /** The field at fault, or the beginning of its path; undefined: the fault is in no field. */
  readonly field: string | undefined;
  readonly code: RegExp;
}

export interface ServedFacts {
  readonly model: string;
  readonly vocabSize: number;
  readonly contextTokens: number;
  readonly bodyBytesMax: number;
}

const chatPath = '/v1/chat/completions';
const completionPath = '/v1/completions';
type Endpoint = 'chat' | 'completion';

/** Values are JSON text, so that they may be what JSON.stringify never writes. */
type Fields = Map<string, string>;

/** Numbers of a multiplicative generator: the same requests from the same seed. */
export class Chance {
  #state: number;

  constructor(seed: number) {
    this.#state = (seed ^ 0x5eed1e55) >>> 0;
  }

  /** An integer from 0 to below `bound`. */
  below(bound: number): number {
    this.#state = (this.#state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 16), 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
    return Math.floor((((mixed ^ (mixed >>> 16)) >>> 0) / 2 ** 32) * bound);
  }

  of<T>(items: readonly T[]): T {
    const item = items[this.below(items.length)];
    if (item === undefined) throw new Error('Cannot choose: the list is empty');
    return item;
  }

  real(low: number, high: number): number {
    return low + (high - low) * (this.below(1_000_000) / 1_000_000);
  }
}

const word = (chance: Chance): string =>
  Array.from({ length: 1 + chance.below(10) }, () => String.fromCharCode(97 + chance.below(26))).join('');

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

type Fault = (chance: Chance, facts: ServedFacts) => string;
const among =
  (...values: readonly string[]): Fault =>
  (chance) =>
    chance.of(values);
/** A wrong type, or a number outside [low, high]. */
const number =
  (low: number, high: number, wrong = noNumber): Fault =>
  (chance) => {
    const outside = [
      String(high + chance.real(0.001, 1000)),
      String(low - chance.real(0.001, 1000)),
      '1e308',
      '-1e308',
    ];
    return chance.of(chance.below(2) === 0 ? wrong : outside);
  };
const integer = (low: number, high: number): Fault => {
  const outOfRange: Fault = (chance) =>
    chance.of([
      `${low - 1 - chance.below(1e6)}`,
      ...(high < 1e15 ? [`${high + 1 + chance.below(1e6)}`] : []),
      '-1e300',
    ]);
  return (chance, facts) => (chance.below(2) === 0 ? chance.of(noInteger) : outOfRange(chance, facts));
};
const tokenList: Fault = (chance, { vocabSize }) =>
  chance.of([
    ...['1', '"1"', '{}', '[-1]', '["1"]', '[1.5]', '[[1]]', '[1e300]', '[true]', `[${'1,'.repeat(64)}1]`],
    `[${vocabSize + chance.below(1e6)}]`,
    `[1,2,${2 ** 31 + chance.below(1e6)}]`,
  ]);

const stops: Fault = (chance) =>
  chance.of([
    ...['0', 'true', '{}', '[""]', '[1]', '[[]]', '["a",{}]', `[${Array(17).fill('"x"').join()}]`],
    `"${'x'.repeat(1025 + chance.below(3000))}"`,
  ]);

const biases: Fault = (chance, { vocabSize }) =>
  chance.of([
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
    `{"${vocabSize + chance.below(1e6)}":${chance.real(-100, 100)}}`,
  ]);

const streamOptions: Fault = among(
  ...['1', 'true', '"x"', '[1]', '{"include_usage":1}', '{"include_usage":"true"}', '{"include_obfuscation":true}'],
  ...['{"x":1}', '{"include_usage":true,"constructor":1}', '{"__proto__":{"include_usage":true}}'],
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
  seed: among(...noInteger, '9007199254740993', '-9007199254740993', '1e300'),
  n: integer(1, 16),
  stop: stops,
  stop_token_ids: tokenList,
  ignore_eos: among(...noFlag),
  stream: among(...noFlag),
  stream_options: streamOptions,
  return_token_ids: among(...noFlag),
  return_tokens_as_token_ids: among(...noFlag),
  cache_salt: (chance) => chance.of([...noText, `"${'s'.repeat(257 + chance.below(1000))}"`]),
  priority: integer(-1000, 1000),
};

const messages: Fault = (chance) => {
  const user = `{"role":"user","content":"${word(chance)}"}`;
  const content = chance.of([
    ...['0', 'true', '{}', '[1]', '["x"]', '[{}]', '[{"type":"text"}]', '[{"type":"text","text":1}]', '[[]]'],
    ...['[{"type":"image_url","image_url":{"url":"http://x"}}]', '[{"type":"input_audio","input_audio":{}}]'],
    ...[
      '[{"type":"text","text":"x","cache":{"a":1}}]',
      '[{"type":"text","text":"a"},{"type":"refusal","refusal":"x"}]',
    ],
  ]);
  const member = chance.of([
    ...['"tool_calls":[{"id":"1"}]', '"function_call":{"name":"f"}', '"audio":{"id":"1"}', '"name":1', '"name":{}'],
    ...['"refusal":"no"', '"prefix":true', `"${word(chance)}_":1`, '"__proto__":{"a":1}', '"constructor":{"a":1}'],
    ...['"reasoning_content":"x"', '"tool_call_id":"1"', '"weight":0'],
  ]);
  const role = chance.of([
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
  const bad = chance.of([
    ...['1', '"x"', 'true', '[]', '{}', '{"role":"user"}', '{"content":"x"}', '{"role":"user","content":null}'],
    ...[
      `{"role":"user","content":${content}}`,
      `{"role":"user","content":"x",${member}}`,
      `{"role":${role},"content":"x"}`,
    ],
    ...[`{"role":"assistant","content":${content}}`, `{"role":"system","content":"x",${member}}`],
  ]);
  const list = [...Array<string>(chance.below(4)).fill(user), bad, ...Array<string>(chance.below(3)).fill(user)];
  return chance.below(6) === 0 ? chance.of(['1', '"x"', 'true', '{}', '[]', 'null', '{"0":{}}']) : `[${list.join()}]`;
};

const chatFaults: Readonly<Record<string, Fault>> = {
  ...sharedFaults,
  messages,
  max_tokens: integer(1, Number.MAX_SAFE_INTEGER),
  max_completion_tokens: integer(1, Number.MAX_SAFE_INTEGER),
  logprobs: among(...noFlag),
  top_logprobs: integer(0, 20),
};

const prompts: Fault = (chance, { vocabSize }) =>
  chance.of([
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
    `[${vocabSize + chance.below(1e9)}]`,
    `[1,${2 ** 32 + chance.below(vocabSize)}]`,
    `[[1],[2,${vocabSize}]]`,
  ]);

const completionFaults: Readonly<Record<string, Fault>> = {
  ...sharedFaults,
  prompt: prompts,
  max_tokens: integer(0, Number.MAX_SAFE_INTEGER),
  logprobs: integer(0, 20),
  echo: among(...noFlag),
};

/** Known fields that ask for what is not served. */
const unsupported: Readonly<Record<string, readonly string[]>> = {
  tools: [
    '[{"type":"function","function":{"name":"f","parameters":{}}}]',
    '{}',
    '1',
    '"auto"',
    '[[]]',
    'true',
    '[null]',
  ],
  functions: ['[{"name":"f"}]', '{}', 'true', '"f"'],
  tool_choice: ['"required"', '{"type":"function","function":{"name":"f"}}', '1', '[]', '""', 'true'],
  function_call: ['{"name":"f"}', '"f"', '0'],
  response_format: [
    ...[
      '{"type":"json_object"}',
      '{"type":"json_schema","json_schema":{"name":"a","schema":{}}}',
      '"text"',
      '[]',
      '{}',
    ],
    ...['{"type":["text"]}', '1', '{"type":"grammar"}', '{"Type":"text"}'],
  ],
  modalities: ['["audio"]', '["text","audio"]', '"text"', '{}', '1'],
  audio: ['{"voice":"alloy","format":"wav"}', '1'],
  prediction: ['{"type":"content","content":"x"}'],
  web_search_options: ['{"search_context_size":"low"}'],
  reasoning_effort: ['"low"', '"high"', '1'],
  store: ['true', '1', '"false"', '{}'],
  service_tier: ['"flex"', '"priority"', '1'],
  verbosity: ['"low"', '"high"', '3'],
  suffix: ['"end"', '1', '[]'],
  best_of: ['2', '0', '"1"', '[]'],
  min_tokens: ['1', '"0"', '-1'],
  use_beam_search: ['true', '1'],
  length_penalty: ['2', '0', '"1"'],
  skip_special_tokens: ['false', '1'],
  include_stop_str_in_output: ['true'],
  add_generation_prompt: ['false', '0'],
  continue_final_message: ['true'],
  guided_json: ['{"type":"object"}'],
  chat_template: ['"{{ 1 }}"'],
  mirostat: ['1'],
};
const strangeNames = [
  'constructor',
  '__proto__',
  'hasOwnProperty',
  'toString',
  'prototype',
  '',
  ' model',
  'Model',
  'n ',
];

/** What any request may have beside its fault. */
const harmless: Readonly<Record<string, (chance: Chance) => string>> = {
  temperature: (chance) => String(chance.real(0, 2)),
  top_p: (chance) => String(chance.real(0.001, 1)),
  seed: (chance) => String(chance.below(2 ** 31)),
  priority: (chance) => String(chance.below(2001) - 1000),
  presence_penalty: (chance) => String(chance.real(-2, 2)),
  stop: (chance) => `["${word(chance)}"]`,
  stream: (chance) => chance.of(['true', 'false']),
  user: (chance) => `"${word(chance)}"`,
  metadata: () => '{"a":"b"}',
  tools: () => '[]',
  response_format: () => '{"type":"text"}',
  logit_bias: () => '{"5":-1}',
  stream_options: () => 'null',
  ignore_eos: () => 'true',
};

function goodFields(endpoint: Endpoint, chance: Chance, { model }: ServedFacts): Fields {
  const fields: Fields = new Map([['model', JSON.stringify(model)]]);
  if (endpoint === 'chat') fields.set('messages', `[{"role":"user","content":"${word(chance)}"}]`);
  else fields.set('prompt', chance.of([`"${word(chance)}"`, '[5,6,7]', '["a","b"]', '[[5],[6,7]]']));
  for (let extras = chance.below(4); extras > 0; extras--) {
    const [name, make] = chance.of(Object.entries(harmless));
    fields.set(name, make(chance));
  }
  return fields;
}

/** Members in an order of chance. */
function spell(fields: Fields, chance: Chance): string {
  const members = [...fields].map(([name, value]) => `${JSON.stringify(name)}:${value}`);
  const shuffled = members.map((member) => [chance.below(1e9), member] as const).sort(([a], [b]) => a - b);
  return `{${shuffled.map(([, member]) => member).join(chance.of([',', ', ', '\n,\t']))}}`;
}

function post(endpoint: Endpoint, body: Uint8Array | string): Omit<Malformed, 'status' | 'field' | 'code'> {
  const path = endpoint === 'chat' ? chatPath : completionPath;
  return { method: 'POST', path, headers: { 'content-type': 'application/json' }, body };
}

type Kind = (chance: Chance, facts: ServedFacts) => Malformed;

function withField(endpoint: Endpoint, name: string, value: string, chance: Chance, facts: ServedFacts): string {
  const fields = goodFields(endpoint, chance, facts);
  fields.set(name, value);
  return spell(fields, chance);
}

const endpointOf = (chance: Chance): Endpoint => chance.of(['chat', 'completion'] as const);

const fieldFault: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const [field, fault] = chance.of(Object.entries(endpoint === 'chat' ? chatFaults : completionFaults));
  const body = withField(endpoint, field, fault(chance, facts), chance, facts);
  return { ...post(endpoint, body), status: 400, field, code: /^(invalid_value|unknown_parameter)$/ };
};

const missingField: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const fields = goodFields(endpoint, chance, facts);
  const field = chance.of(['model', endpoint === 'chat' ? 'messages' : 'prompt']);
  fields.delete(field);
  return { ...post(endpoint, spell(fields, chance)), status: 400, field, code: /^invalid_value$/ };
};

const unsupportedField: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const [field, values] = chance.of(Object.entries(unsupported));
  const body = withField(endpoint, field, chance.of(values), chance, facts);
  return { ...post(endpoint, body), status: 400, field, code: /^(unsupported|unknown)_parameter$/ };
};

const unknownField: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const field = chance.below(3) === 0 ? chance.of(strangeNames) : `${word(chance)}_${word(chance)}`;
  const body = withField(endpoint, field, chance.of(['1', '"x"', '{}', '[]', 'true', '{"a":{"b":[]}}']), chance, facts);
  return { ...post(endpoint, body), status: 400, field, code: /^unknown_parameter$/ };
};

const deepField: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const field = chance.of([
    'logit_bias',
    'stop',
    'tools',
    'metadata',
    'user',
    endpoint === 'chat' ? 'messages' : 'prompt',
  ]);
  const levels = 33 + chance.below(10_000);
  const [open, close] = chance.of([
    ['[', ']'],
    ['{"a":', '}'],
  ] as const);
  const value = `${open.repeat(levels)}1${close.repeat(levels)}`;
  const body = withField(endpoint, field, value, chance, facts);
  return { ...post(endpoint, body), status: 400, field, code: /^(invalid_value|unsupported_parameter)$/ };
};

const contradiction: Kind = (chance, facts) => {
  const cases: readonly (readonly [Endpoint, Readonly<Record<string, string>>, string])[] = [
    ['chat', { max_tokens: '5', max_completion_tokens: `${6 + chance.below(100)}` }, 'max_tokens'],
    ['chat', { top_logprobs: `${chance.below(21)}` }, 'top_logprobs'],
    ['chat', { top_logprobs: '2', logprobs: 'false' }, 'top_logprobs'],
    ['completion', { max_tokens: '0' }, 'max_tokens'],
    ['completion', { max_tokens: '0', echo: 'false' }, 'max_tokens'],
    ['completion', { prompt: `[${Array(300).fill('"a"').join()}]` }, 'prompt'],
    ['completion', { prompt: `[${Array(200).fill('"a"').join()}]`, n: '16' }, 'n'],
  ];
  const [endpoint, own, field] = chance.of(cases);
  const fields = goodFields(endpoint, chance, facts);
  for (const [name, value] of Object.entries(own)) fields.set(name, value);
  return { ...post(endpoint, spell(fields, chance)), status: 400, field, code: /^invalid_value$/ };
};

const tooLong: Kind = (chance, facts) => {
  const over = facts.contextTokens + 1 + chance.below(1000);
  const [endpoint, own] = chance.of<readonly [Endpoint, readonly [string, string]]>([
    ['completion', ['prompt', `[${Array(over).fill('5').join()}]`]],
    ['completion', ['max_tokens', String(over)]],
    ['completion', ['max_tokens', String(Number.MAX_SAFE_INTEGER)]],
    ['chat', ['max_tokens', String(over)]],
    ['chat', ['max_completion_tokens', '1000000000000']],
  ]);
  const body = withField(endpoint, own[0], own[1], chance, facts);
  return { ...post(endpoint, body), status: 400, field: 'max_tokens', code: /^context_length_exceeded$/ };
};

const unknownModel: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const model = chance.of([
    'gpt-4',
    '',
    '../etc/passwd',
    `${facts.model}x`,
    '__proto__',
    '\u0000',
    '\ud800',
    'x'.repeat(5000),
  ]);
  const body = withField(endpoint, 'model', JSON.stringify(model), chance, facts);
  return { ...post(endpoint, body), status: 404, field: 'model', code: /^model_not_found$/ };
};

/** Bytes that are no JSON object in UTF-8. */
const noObject: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const good = Buffer.from(spell(goodFields(endpoint, chance, facts), chance));
  const cut = 1 + chance.below(good.length - 1);
  const place = 1 + good.indexOf('"');
  const broken = chance.of([
    ...[[0xff], [0xc0, 0x80], [0xed, 0xa0, 0x80], [0xf5, 0x80, 0x80, 0x80], [0x80], [0xe2, 0x82], [0x00], [0x0a]],
  ]);
  const body = chance.of<() => Uint8Array | string>([
    () => good.subarray(0, cut),
    () => good.subarray(cut),
    () => Buffer.concat([good.subarray(0, place), Buffer.from(broken), good.subarray(place)]),
    () => Buffer.concat([good, Buffer.from(chance.of(['}', ',', '{}', 'x', ']', '\0']))]),
    () => Buffer.from(good.toString(), 'utf16le'),
    () =>
      chance.of([
        '',
        ' ',
        '{',
        'null',
        'true',
        '1',
        '"x"',
        '[]',
        '[{}]',
        'NaN',
        'undefined',
        "{'model':'x'}",
        '{model:1}',
      ]),
    () =>
      `{"model":"x","temperature":${chance.of(['NaN', 'Infinity', '-Infinity', '+1', '.5', '1.', '01', '0x1', ''])}}`,
    () => '['.repeat(1 + chance.below(50_000)),
    () => `model=${word(chance)}&prompt=${word(chance)}`,
    () => `--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n${word(chance)}\r\n--x--`,
  ])();
  const type = chance.of([
    'application/json',
    'text/plain',
    'multipart/form-data; boundary=x',
    'application/x-www-form-urlencoded',
  ]);
  const headers = { 'content-type': type };
  return { ...post(endpoint, body), headers, status: 400, field: undefined, code: /^invalid_(json|value)$/ };
};

const encodedBody: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const headers = {
    'content-type': 'application/json',
    'content-encoding': chance.of(['gzip', 'br', 'deflate', 'x', 'zstd']),
  };
  const body = spell(goodFields(endpoint, chance, facts), chance);
  return { ...post(endpoint, body), headers, status: 415, field: 'content-encoding', code: /^unsupported_encoding$/ };
};

const oversize: Kind = (chance, facts) => {
  const endpoint = endpointOf(chance);
  const body = withField(endpoint, 'user', `"${'x'.repeat(facts.bodyBytesMax)}"`, chance, facts);
  return { ...post(endpoint, body), status: 413, field: undefined, code: /^body_too_large$/ };
};

const wrongMethod: Kind = (chance, facts) => {
  const cases: readonly (readonly [string, readonly string[]])[] = [
    [chatPath, ['GET', 'PUT', 'DELETE', 'PATCH', 'PROPFIND']],
    [completionPath, ['GET', 'PUT', 'DELETE', 'PATCH', 'SEARCH']],
    ['/v1/models', ['POST', 'PUT', 'DELETE', 'PATCH']],
    [`/v1/models/${facts.model}`, ['POST', 'DELETE', 'PUT']],
    ['/health', ['POST', 'PUT', 'DELETE']],
    ['/ready', ['POST', 'PATCH']],
    ['/metrics', ['POST', 'DELETE']],
  ];
  const [path, methods] = chance.of(cases);
  const body = chance.of(['', '{}', '{"model":']);
  return {
    method: chance.of(methods),
    path,
    headers: {},
    body,
    status: 405,
    field: undefined,
    code: /^method_not_allowed$/,
  };
};

const unknownPath: Kind = (chance) => {
  const path = chance.of([
    ...[
      '/',
      '/v1',
      '/v1/',
      '/v1/embeddings',
      '/v1/chat',
      '/v1/chat/completions/',
      '/v1/completions/x',
      '/v2/completions',
    ],
    ...[
      '/v1/responses',
      '/v1/files',
      '/v1/audio/speech',
      '/V1/COMPLETIONS',
      '/v1//completions',
      '/v1/%63ompletions%00',
    ],
    ...['/v1/models/gpt-4', '/v1/models/%ff', '/v1/models/%2e%2e%2f', '/v1/models/a/b/c', '/__proto__', '/constructor'],
    `/${word(chance)}/${word(chance)}`,
    `/v1/models/${'x'.repeat(2000)}`,
  ]);
  const method = path.startsWith('/v1/models/') ? 'GET' : chance.of(['GET', 'POST', 'DELETE']);
  return { method, path, headers: {}, body: method === 'POST' ? '{}' : '', status: 404, field: undefined, code: /_/ };
};

/** Kinds by how often they come. */
const kinds: readonly (readonly [number, Kind])[] = [
  [46, fieldFault],
  [3, missingField],
  [11, unsupportedField],
  [8, unknownField],
  [4, deepField],
  [4, contradiction],
  [2, tooLong],
  [3, unknownModel],
  [10, noObject],
  [2, encodedBody],
  [1, oversize],
  [3, wrongMethod],
  [3, unknownPath],
];

/** The same requests for the same seed. */
export function malformedRequests(count: number, seed: number, facts: ServedFacts): Malformed[] {
  const wheel = kinds.flatMap(([weight, kind]) => Array<Kind>(weight).fill(kind));
  return Array.from({ length: count }, (_, index) => {
    const chance = new Chance(Math.imul(seed, 7919) + index);
    return chance.of(wheel)(chance, facts);
  });
}
