// Values that no valid file holds: numbers beyond every range, unbounded structures, templates that never end.
import type { GgufValue } from '../weights/writers.ts';

/** JSON text of numbers at and beyond the limits. */
export const jsonNumbers: readonly string[] = [
  ...[
    '0',
    '-1',
    '1',
    '2',
    '3',
    '0.5',
    '-0.0',
    '1e-320',
    '1e308',
    '-1e308',
    '1e999',
    '255',
    '256',
    '65535',
    '2147483647',
  ],
  ...['2147483648', '4294967295', '4294967296', '9007199254740991', '9007199254740993', '9223372036854775807'],
  ...['18446744073709551616', '1e20', '100000', '268435456', '134217728'],
];

/** JSON text of values that are not numbers. */
export const jsonOddities: readonly string[] = [
  ...[
    'null',
    'true',
    'false',
    '""',
    '"x"',
    '"\\u0000"',
    '"\\ud800"',
    '"__proto__"',
    '[]',
    '{}',
    '[[]]',
    '[null]',
    '{"":""}',
  ],
  ...['"NaN"', '[1,2,3]', '{"type":"Sequence"}', '{"__proto__":{"type":"BPE"}}', '"a\\nb\\u2028c"'],
];

export const sizes: readonly (number | bigint)[] = [
  ...[0, 1, 2, 3, 31, 33, 255, 65_536, 2 ** 20, 2 ** 28, 2 ** 31, 2 ** 32, 2 ** 40, 2 ** 53],
  ...[2n ** 63n, 2n ** 64n - 1n, 2n ** 62n, 10n ** 12n],
];

export const ggufOddities: readonly GgufValue[] = [
  { type: 'u32', value: 0xffff_ffff },
  { type: 'u32', value: 0 },
  { type: 'i32', value: -1 },
  { type: 'u64', value: 2n ** 64n - 1n },
  { type: 'u64', value: 2n ** 53n },
  { type: 'i64', value: -1n },
  { type: 'f32', value: Number.NaN },
  { type: 'f32', value: Number.POSITIVE_INFINITY },
  { type: 'f32', value: -0 },
  { type: 'f64', value: 1e308 },
  { type: 'f64', value: 1e-320 },
  { type: 'bool', value: true },
  { type: 'string', value: '' },
  { type: 'string', value: 'a\nb\u2028c' },
  { type: 'string', value: Uint8Array.of(0xff, 0xfe) },
  { type: 'array', itemType: 'u32', items: [] },
  { type: 'array', itemType: 'string', items: [] },
  { type: 'array', itemType: 'array', items: [{ type: 'array', itemType: 'u8', items: [] }] },
];

const loop = (times: number, body: string): string => `{% for i in range(${times}) %}${body}{% endfor %}`;
const nest = (levels: number, open: string, inner: string, close: string): string =>
  open.repeat(levels) + inner + close.repeat(levels);

/** Templates that loop, grow, recurse or fail. */
export const templates: readonly string[] = [
  loop(99_999, loop(99_999, '')),
  loop(99_999, loop(99_999, 'x')),
  loop(1000, loop(1000, loop(1000, '{{ i }}'))),
  `{% set ns = namespace(s='x') %}${loop(60, '{% set ns.s = ns.s + ns.s %}')}{{ ns.s }}`,
  `{% set ns = namespace(s='xy') %}${loop(60, '{% set ns.s = ns.s ~ ns.s %}')}{{ ns.s | length }}`,
  `{% set ns = namespace(a=[1]) %}${loop(60, '{% set ns.a = ns.a + ns.a %}')}{{ ns.a }}`,
  `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}${loop(12, "{% set ns.s = ns.s | replace('a', ns.s) %}")}{{ ns.s }}`,
  `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}${loop(12, "{% set ns.s = ns.s.replace('a', ns.s) %}")}{{ ns.s }}`,
  `{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}${loop(12, '{% set ns.s = range(1000) | join(ns.s) %}')}{{ ns.s }}`,
  "{{ 'a\\nb' | indent(500000000) }}",
  '{{ messages | tojson(indent=300000000) }}',
  "{{ {'a': {'b': {'c': 1}}} | tojson(indent=99999999) }}",
  '{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}',
  '{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(0) }}',
  '{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}',
  '{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) ~ f(n - 1) }}{% else %}x{% endif %}{% endmacro %}{{ f(40) }}',
  nest(5000, '{% if true %}', 'x', '{% endif %}'),
  `{{ ${nest(20_000, '(', '1', ')')} }}`,
  `{{ ${nest(5000, '[', '', ']')} }}`,
  `{{ ${'not '.repeat(20_000)}true }}`,
  `{{ ${'1 + '.repeat(20_000)}1 }}`,
  `{{ 'x'${' | upper'.repeat(20_000)} }}`,
  '{#'.repeat(20_000),
  '{{ '.repeat(20_000),
  '{%'.repeat(20_000),
  `${'{# '.repeat(10_000)}${' #}'.repeat(10_000)}`,
  `${' '.repeat(60_000)}{%- if true %}${'\n'.repeat(60_000)}{%- endif %}`,
  `{{ '${'\\'.repeat(40_001)}' }}`,
  '{% for m in messages %}{{ m.x.y.z }}{% endfor %}',
  '{{ messages[1e308] }}{{ messages[-1] }}{{ messages[99999999] }}',
  "{{ raise_exception('a\\nb\\nc') }}",
  `{{ raise_exception('${'long '.repeat(20_000)}') }}`,
  "{% set x.y.z = 1 %}{{ (1, 2) = 3 }}{% set 'x' = 2 %}",
  '{{ 1 // 0 }}{{ 1 % 0 }}{{ 1 / 0 }}',
  '{{ range(0, 10, 0) }}{{ range(1e308) }}{{ range(-1e308, 1e308) }}',
  '{{ range(99999) | list | tojson }}',
  `${loop(99_999, '{% set a = range(99999) %}')}`,
  `${loop(99_999, "{{ 'x' | upper | lower | title }}")}`,
  "{{ strftime_now('%Y-%%-%Q%') }}",
  '{{ messages | map(attribute="content") | join("," * 99) }}',
  '{{ __proto__ }}{{ constructor }}{{ messages.__proto__.x }}{{ messages.constructor("return 1")() }}',
  '{% set messages = messages + messages %}'.repeat(40),
  '{% set s = s + s %}'.repeat(40),
  `{% set s = 'x' %}${'{% set s = s + s %}'.repeat(40)}{{ s | replace('x', s) }}`,
  `{% set s = 'x y ' %}${'{% set s = s + s %}'.repeat(18)}${loop(1000, '{% set t = s.split() %}')}`,
  '\u0000\uffff{{ "\ud800" }}',
  '{% generation %}{% endgeneration %}{% call(x) f() %}{% endcall %}{% filter upper %}x{% endfilter %}',
  '{% include "x" %}{% import "os" as os %}{{ cycler("a") }}',
];
