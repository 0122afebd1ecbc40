// Expressions of chat templates that the library does not parse, written with filters: tuples, and tests with an argument.

/** Names the filter that makes a tuple of a list. */
export const tupleFilter = '__tuple__';
/** Names the filters that apply a test with an argument; the second negates it. */
export const testFilters = ['__test__', '__nottest__'] as const;

const testNames: ReadonlySet<string> = new Set(
  'divisibleby eq equalto ne lt lessthan le gt greaterthan ge sameas in'.split(' '),
);
/** Words before a bracket that begins no call. */
const operators: ReadonlySet<string> = new Set('in not and or if else elif is set for do'.split(' '));
const needed = /,\s*\)|\(\s*\)|\bis\s/;
const isName = (token: string | undefined): token is string => token !== undefined && /^[A-Za-z_]/.test(token);
const isSpace = (token: string | undefined): boolean => token !== undefined && token.trim() === '';

/** @param body an expression or statement without its marks */
export function rewriteExpression(body: string): string {
  if (!needed.test(body)) return body;
  const tokens = body.match(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\w+|\s+|./gs) ?? [];
  return new Rewriter(tokens).until(undefined);
}

class Rewriter {
  readonly #tokens: readonly string[];
  #at = 0;

  constructor(tokens: readonly string[]) {
    this.#tokens = tokens;
  }

  /** The text up to a closing bracket, which is passed. */
  until(close: string | undefined): string {
    let text = '';
    let before: string | undefined;
    while (this.#at < this.#tokens.length) {
      const token = this.#tokens[this.#at++] as string;
      if (token === close) return text;
      if (token === 'is') text += this.#test();
      else if ('([{'.includes(token)) text += this.#group(token, before);
      else text += token;
      if (!isSpace(token)) before = token;
    }
    return text;
  }

  /** A bracket with its content; the opening bracket has been passed. @param before the token before it */
  #group(open: string, before: string | undefined): string {
    const close = open === '(' ? ')' : open === '[' ? ']' : '}';
    const inner = this.until(close);
    if (open !== '(') return open + inner + close;
    const isCall = (isName(before) && !operators.has(before)) || before === ')' || before === ']';
    const bare = inner.trimEnd();
    const hasComma = bare.endsWith(',');
    if (isCall) return `(${hasComma ? bare.slice(0, -1) : inner})`;
    if (!hasComma && bare !== '') return `(${inner})`;
    return `([${hasComma ? bare.slice(0, -1) : ''}] | ${tupleFilter})`;
  }

  /** What follows the word `is`: a test with an argument becomes a filter. */
  #test(): string {
    const start = this.#at;
    this.#skipSpace();
    const negates = this.#tokens[this.#at] === 'not';
    if (negates) this.#at++;
    this.#skipSpace();
    const name = this.#tokens[this.#at++];
    const argument = name !== undefined && testNames.has(name) ? this.#argument() : undefined;
    if (argument !== undefined) return `| ${testFilters[negates ? 1 : 0]}("${name}", ${argument})`;
    this.#at = start;
    return 'is';
  }

  /** A value in brackets, or one value with what is bound to it. */
  #argument(): string | undefined {
    this.#skipSpace();
    const first = this.#tokens[this.#at++];
    if (first === undefined || operators.has(first)) return undefined;
    if (first === '(') return this.until(')');
    if (!/^["'\w[{]/.test(first)) return undefined;
    let text = '[{'.includes(first) ? this.#group(first, undefined) : first;
    for (;;) {
      const next = this.#tokens[this.#at];
      if (next === '.') text += next + (this.#tokens[this.#at + 1] ?? '');
      else if (next !== '[' && next !== '(') return text;
      this.#at += next === '.' ? 2 : 1;
      if (next !== '.') text += this.#group(next, first);
    }
  }

  #skipSpace(): void {
    while (isSpace(this.#tokens[this.#at])) this.#at++;
  }
}
