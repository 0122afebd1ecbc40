// Malformed requests by grammar: each has exactly one fault, which its answer has to name.
import { Chance } from '../fuzz/chance.ts';
import { chatFaults, completionFaults, type ServedFacts, unsupported, word } from './malformed-fields.ts';

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

const chatPath = '/v1/chat/completions';
const completionPath = '/v1/completions';
type Endpoint = 'chat' | 'completion';

/** Values are JSON text, so that they may be what JSON.stringify never writes. */
type Fields = Map<string, string>;

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
      '/v1/files/file-x/contents',
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
