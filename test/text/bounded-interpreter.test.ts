// Templates that loop, grow or recurse are stopped at limits; templates of real models stay far below them.
import { describe, expect, it } from 'vitest';
import { type ChatMessage, ChatTemplate, ChatTemplateError } from '../../src/text/template/chat-template.ts';

const messages: readonly ChatMessage[] = [{ role: 'user', content: 'hello' }];
const render = (source: string, given = messages): string => new ChatTemplate(source).render({ messages: given });
const rounds = (times: number, body: string): string => `{% for i in range(${times}) %}${body}{% endfor %}`;

describe('a template is refused when it', () => {
  it.each([
    ['loops without end', rounds(9999, rounds(9999, '')), /too many steps/],
    [
      'calls itself twice',
      '{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(0) }}',
      /call stack|too many steps|not a function/,
    ],
    [
      'doubles a text',
      `{% set ns = namespace(s='x') %}${rounds(60, '{% set ns.s = ns.s + ns.s %}')}`,
      /more than \d+ characters/,
    ],
    [
      'doubles a list',
      `{% set ns = namespace(a=[1]) %}${rounds(60, '{% set ns.a = ns.a + ns.a %}')}`,
      /more than 20000 items/,
    ],
    ['makes a long range', '{{ range(30000) }}', /range\(\) of 30000 items/],
    [
      'replaces by long texts',
      `{% set s = 'aaaaaaaaaa' %}${"{% set s = s | replace('a', s) %}".repeat(9)}`,
      /more than \d+ characters/,
    ],
    [
      'replaces by a method',
      `{% set s = 'aaaaaaaaaa' %}${"{% set s = s['repl' ~ 'ace']('a', s) %}".repeat(9)}`,
      /more than \d+ characters/,
    ],
    [
      'splits a long text',
      `{% set s = 'a,' %}${'{% set s = s + s %}'.repeat(18)}{{ s.split(',') | length }}`,
      /more than 20000 items/,
    ],
    [
      'joins by long texts',
      `{% set s = 'aaaaaaaaaa' %}${'{% set s = range(1000) | join(s) %}'.repeat(4)}`,
      /more than \d+ characters/,
    ],
    [
      'writes a list of long texts',
      `{% set s = 'a' %}${'{% set s = s + s %}'.repeat(19)}{{ [s, s, s, s] }}`,
      /more than \d+ characters/,
    ],
    ['indents by a large number', "{{ 'a\\nb' | indent(500000000) }}", /'indent' takes numbers up to 64/],
    ['indents JSON by a large number', '{{ messages | tojson(indent=300000000) }}', /'tojson' takes numbers up to 64/],
    ['exceeds the source length limit', 'x'.repeat(300_000), /at most 262144 are read/],
    ['has a long run of spaces', `${' '.repeat(5000)}{%- if true %}{% endif %}`, /spaces in a row/],
  ])('%s', (_, source, why) => {
    const refusal = (() => {
      try {
        return render(source);
      } catch (error) {
        return error;
      }
    })();
    expect(refusal).toBeInstanceOf(ChatTemplateError);
    expect(String(refusal)).toMatch(why);
  });

  it('raises an error of many lines', () => {
    expect(() => render(`{{ raise_exception('a\\nb ${'long '.repeat(9999)}') }}`)).toThrow(
      /refuses it: a\ufffdb long [^\n]{1,400}$/,
    );
  });
});

describe('a template may', () => {
  it('iterate over a long conversation and look up messages', () => {
    const source =
      "{% for m in messages %}{% if loop.index0 > 0 and messages[loop.index0 - 1].role == m.role %}!{% endif %}{{ m.content | trim | replace('a', '&amp;') }}{% endfor %}";
    const many = Array.from({ length: 3000 }, (_, at) => ({
      role: at % 2 === 0 ? 'user' : 'assistant',
      content: 'a b '.repeat(30),
    }));
    expect(render(source, many).length).toBeGreaterThan(300_000);
  });

  it('handle a long text', () => {
    const content = 'word, '.repeat(200_000);
    expect(
      render("{{ (messages[0].content ~ '!') | upper | replace(',', ';') }}", [{ role: 'user', content }]).length,
    ).toBe(1_200_001);
  });

  it('use the methods and filters with size checks', () => {
    const source =
      "{{ 'a-b-c'.split('-') | join('+') }} {{ 'a b'.split() }} {{ 'x'.replace('x', 'yy') }} {{ {'k': [1]} | tojson(indent=2) }} {{ 'a\\nb' | indent(2) }}";
    expect(render(source)).toBe("a+b+c ['a', 'b'] yy {\n  \"k\": [\n    1\n  ]\n} a\n  b");
  });
});
