// Malformed requests by grammar: each has exactly one fault, which its response must name.
import { MutationRandom } from '../fuzz/mutation-random.ts';
import {
  chatFaults,
  completionFaults,
  type ServedFacts,
  unsupported,
  unsupportedInCompletions,
  word,
} from './malformed-fields.ts';

/** A request with one fault, and the content of its refusal. */
export interface Malformed {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array | string;
  readonly status: number;
  /** The invalid field, or a prefix of its path; undefined: the fault is in no field. */
  readonly field: string | undefined;
  readonly code: RegExp;
}

const chatPath = '/v1/chat/completions';
const completionPath = '/v1/completions';
type Endpoint = 'chat' | 'completion';

/** Values are JSON text, so that they may be values that JSON.stringify never writes. */
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

/** Valid members of any request besides its fault. */
const harmless: Readonly<Record<string, (prng: MutationRandom) => string>> = {
  temperature: (prng) => String(prng.real(0, 2)),
  top_p: (prng) => String(prng.real(0.001, 1)),
  seed: (prng) => String(prng.below(2 ** 31)),
  priority: (prng) => String(prng.below(2001) - 1000),
  presence_penalty: (prng) => String(prng.real(-2, 2)),
  stop: (prng) => `["${word(prng)}"]`,
  stream: (prng) => prng.pick(['true', 'false']),
  user: (prng) => `"${word(prng)}"`,
  metadata: () => '{"a":"b"}',
  tools: () => '[]',
  response_format: () => '{"type":"text"}',
  logit_bias: () => '{"5":-1}',
  stream_options: () => 'null',
  ignore_eos: () => 'true',
};

function goodFields(endpoint: Endpoint, prng: MutationRandom, { model }: ServedFacts): Fields {
  const fields: Fields = new Map([['model', JSON.stringify(model)]]);
  if (endpoint === 'chat') fields.set('messages', `[{"role":"user","content":"${word(prng)}"}]`);
  else fields.set('prompt', prng.pick([`"${word(prng)}"`, '[5,6,7]', '["a","b"]', '[[5],[6,7]]']));
  for (let extras = prng.below(4); extras > 0; extras--) {
    const [name, make] = prng.pick(Object.entries(harmless));
    fields.set(name, make(prng));
  }
  return fields;
}

/** Members in random order. */
function spell(fields: Fields, prng: MutationRandom): string {
  const members = [...fields].map(([name, value]) => `${JSON.stringify(name)}:${value}`);
  const shuffled = members.map((member) => [prng.below(1e9), member] as const).sort(([a], [b]) => a - b);
  return `{${shuffled.map(([, member]) => member).join(prng.pick([',', ', ', '\n,\t']))}}`;
}

function post(endpoint: Endpoint, body: Uint8Array | string): Omit<Malformed, 'status' | 'field' | 'code'> {
  const path = endpoint === 'chat' ? chatPath : completionPath;
  return { method: 'POST', path, headers: { 'content-type': 'application/json' }, body };
}

type Kind = (prng: MutationRandom, facts: ServedFacts) => Malformed;

function withField(endpoint: Endpoint, name: string, value: string, prng: MutationRandom, facts: ServedFacts): string {
  const fields = goodFields(endpoint, prng, facts);
  fields.set(name, value);
  return spell(fields, prng);
}

const endpointOf = (prng: MutationRandom): Endpoint => prng.pick(['chat', 'completion'] as const);

const fieldFault: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const [field, fault] = prng.pick(Object.entries(endpoint === 'chat' ? chatFaults : completionFaults));
  const body = withField(endpoint, field, fault(prng, facts), prng, facts);
  return { ...post(endpoint, body), status: 400, field, code: /^(invalid_value|unknown_parameter)$/ };
};

const missingField: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const fields = goodFields(endpoint, prng, facts);
  const field = prng.pick(['model', endpoint === 'chat' ? 'messages' : 'prompt']);
  fields.delete(field);
  return { ...post(endpoint, spell(fields, prng)), status: 400, field, code: /^invalid_value$/ };
};

const unsupportedField: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const chosen = endpoint === 'chat' ? unsupported : { ...unsupported, ...unsupportedInCompletions };
  const [field, values] = prng.pick(Object.entries(chosen));
  const body = withField(endpoint, field, prng.pick(values), prng, facts);
  return { ...post(endpoint, body), status: 400, field, code: /^(unsupported|unknown)_parameter$/ };
};

const unknownField: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const field = prng.below(3) === 0 ? prng.pick(strangeNames) : `${word(prng)}_${word(prng)}`;
  const body = withField(endpoint, field, prng.pick(['1', '"x"', '{}', '[]', 'true', '{"a":{"b":[]}}']), prng, facts);
  return { ...post(endpoint, body), status: 400, field, code: /^unknown_parameter$/ };
};

const deepField: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const field = prng.pick([
    'logit_bias',
    'stop',
    'tools',
    'metadata',
    'user',
    endpoint === 'chat' ? 'messages' : 'prompt',
  ]);
  const levels = 33 + prng.below(10_000);
  const [open, close] = prng.pick([
    ['[', ']'],
    ['{"a":', '}'],
  ] as const);
  const value = `${open.repeat(levels)}1${close.repeat(levels)}`;
  const body = withField(endpoint, field, value, prng, facts);
  return { ...post(endpoint, body), status: 400, field, code: /^(invalid_value|unsupported_parameter)$/ };
};

const contradiction: Kind = (prng, facts) => {
  const cases: readonly (readonly [Endpoint, Readonly<Record<string, string>>, string])[] = [
    ['chat', { max_tokens: '5', max_completion_tokens: `${6 + prng.below(100)}` }, 'max_tokens'],
    ['chat', { top_logprobs: `${prng.below(21)}` }, 'top_logprobs'],
    ['chat', { top_logprobs: '2', logprobs: 'false' }, 'top_logprobs'],
    ['completion', { max_tokens: '0' }, 'max_tokens'],
    ['completion', { max_tokens: '0', echo: 'false' }, 'max_tokens'],
    ['completion', { prompt: `[${Array(300).fill('"a"').join()}]` }, 'prompt'],
    ['completion', { prompt: `[${Array(200).fill('"a"').join()}]`, n: '16' }, 'n'],
  ];
  const [endpoint, own, field] = prng.pick(cases);
  const fields = goodFields(endpoint, prng, facts);
  for (const [name, value] of Object.entries(own)) fields.set(name, value);
  return { ...post(endpoint, spell(fields, prng)), status: 400, field, code: /^invalid_value$/ };
};

const tooLong: Kind = (prng, facts) => {
  const over = facts.contextTokens + 1 + prng.below(1000);
  const [endpoint, own] = prng.pick<readonly [Endpoint, readonly [string, string]]>([
    ['completion', ['prompt', `[${Array(over).fill('5').join()}]`]],
    ['completion', ['max_tokens', String(over)]],
    ['completion', ['max_tokens', String(Number.MAX_SAFE_INTEGER)]],
    ['chat', ['max_tokens', String(over)]],
    ['chat', ['max_completion_tokens', '1000000000000']],
  ]);
  const body = withField(endpoint, own[0], own[1], prng, facts);
  return { ...post(endpoint, body), status: 400, field: 'max_tokens', code: /^context_length_exceeded$/ };
};

const unknownModel: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const model = prng.pick([
    'gpt-4',
    '',
    '../etc/passwd',
    `${facts.model}x`,
    '__proto__',
    '\u0000',
    '\ud800',
    'x'.repeat(5000),
  ]);
  const body = withField(endpoint, 'model', JSON.stringify(model), prng, facts);
  return { ...post(endpoint, body), status: 404, field: 'model', code: /^model_not_found$/ };
};

/** Bytes that are not a JSON object in UTF-8. */
const noObject: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const good = Buffer.from(spell(goodFields(endpoint, prng, facts), prng));
  const cut = 1 + prng.below(good.length - 1);
  const place = 1 + good.indexOf('"');
  const broken = prng.pick([
    ...[[0xff], [0xc0, 0x80], [0xed, 0xa0, 0x80], [0xf5, 0x80, 0x80, 0x80], [0x80], [0xe2, 0x82], [0x00], [0x0a]],
  ]);
  const body = prng.pick<() => Uint8Array | string>([
    () => good.subarray(0, cut),
    () => good.subarray(cut),
    () => Buffer.concat([good.subarray(0, place), Buffer.from(broken), good.subarray(place)]),
    () => Buffer.concat([good, Buffer.from(prng.pick(['}', ',', '{}', 'x', ']', '\0']))]),
    () => Buffer.from(good.toString(), 'utf16le'),
    () =>
      prng.pick([
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
      `{"model":"x","temperature":${prng.pick(['NaN', 'Infinity', '-Infinity', '+1', '.5', '1.', '01', '0x1', ''])}}`,
    () => '['.repeat(1 + prng.below(50_000)),
    () => `model=${word(prng)}&prompt=${word(prng)}`,
    () => `--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n${word(prng)}\r\n--x--`,
  ])();
  const type = prng.pick([
    'application/json',
    'text/plain',
    'multipart/form-data; boundary=x',
    'application/x-www-form-urlencoded',
  ]);
  const headers = { 'content-type': type };
  // A server without keys on loopback reads no body that a web page may send without asking.
  if (type.startsWith('text/') || type.endsWith('urlencoded'))
    return { ...post(endpoint, body), headers, status: 415, field: 'content-type', code: /^unsupported_media_type$/ };
  return { ...post(endpoint, body), headers, status: 400, field: undefined, code: /^invalid_(json|value)$/ };
};

const encodedBody: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const headers = {
    'content-type': 'application/json',
    'content-encoding': prng.pick(['gzip', 'br', 'deflate', 'x', 'zstd']),
  };
  const body = spell(goodFields(endpoint, prng, facts), prng);
  return { ...post(endpoint, body), headers, status: 415, field: 'content-encoding', code: /^unsupported_encoding$/ };
};

const oversize: Kind = (prng, facts) => {
  const endpoint = endpointOf(prng);
  const body = withField(endpoint, 'user', `"${'x'.repeat(facts.bodyBytesMax)}"`, prng, facts);
  return { ...post(endpoint, body), status: 413, field: undefined, code: /^body_too_large$/ };
};

const wrongMethod: Kind = (prng, facts) => {
  const cases: readonly (readonly [string, readonly string[]])[] = [
    [chatPath, ['GET', 'PUT', 'DELETE', 'PATCH', 'PROPFIND']],
    [completionPath, ['GET', 'PUT', 'DELETE', 'PATCH', 'SEARCH']],
    ['/v1/models', ['POST', 'PUT', 'DELETE', 'PATCH']],
    [`/v1/models/${facts.model}`, ['POST', 'DELETE', 'PUT']],
    ['/health', ['POST', 'PUT', 'DELETE']],
    ['/ready', ['POST', 'PATCH']],
    ['/metrics', ['POST', 'DELETE']],
  ];
  const [path, methods] = prng.pick(cases);
  const body = prng.pick(['', '{}', '{"model":']);
  return {
    method: prng.pick(methods),
    path,
    headers: { 'content-type': 'application/json' },
    body,
    status: 405,
    field: undefined,
    code: /^method_not_allowed$/,
  };
};

const unknownPath: Kind = (prng) => {
  const path = prng.pick([
    ...['/', '/v1', '/v1/', '/v1/chat', '/v1/chat/completions/', '/v1/completions/x', '/v2/completions'],
    ...[
      '/v1/images/generations',
      '/v1/files/file-x/contents',
      '/v1/audio/speech',
      '/V1/COMPLETIONS',
      '/v1//completions',
      '/v1/%63ompletions%00',
    ],
    ...['/v1/models/gpt-4', '/v1/models/%ff', '/v1/models/%2e%2e%2f', '/v1/models/a/b/c', '/__proto__', '/constructor'],
    `/${word(prng)}/${word(prng)}`,
    `/v1/models/${'x'.repeat(2000)}`,
  ]);
  const method = path.startsWith('/v1/models/') ? 'GET' : prng.pick(['GET', 'POST', 'DELETE']);
  const headers = { 'content-type': 'application/json' };
  return { method, path, headers, body: method === 'POST' ? '{}' : '', status: 404, field: undefined, code: /_/ };
};

/** Kinds by frequency. */
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
    const prng = new MutationRandom(Math.imul(seed, 7919) + index);
    return prng.pick(wheel)(prng, facts);
  });
}
