// Prepares the source of a chat template: what the library's lexer reads differently from jinja2 is written another way.

import { rewriteExpression } from './jinja-expressions.ts';

/** Names the filter that stands for `{% with %}`; the interpreter evaluates it as a scope. */
export const withFilter = '__with__';

interface Tag {
  readonly open: '{{' | '{%' | '{#';
  /** White-space control: '-' strips, '+' keeps. */
  readonly before: string;
  readonly after: string;
  readonly body: string;
  /** Index after the tag. */
  readonly end: number;
}

const closes = { '{{': '}}', '{%': '%}', '{#': '#}' } as const;

/**
 * The template with white space controlled as by jinja2 with trim_blocks and lstrip_blocks, and with `raw`, `with` and
 * `generation` blocks written in forms that the library reads. @throws SyntaxError for a tag without an end
 */
export function prepareSource(source: string): string {
  const text = source.replace(/\r\n?/g, '\n').replace(/\n$/, '');
  const out = new Output();
  let at = 0;
  while (at < text.length) {
    const start = nextOpen(text, at);
    out.addText(text.slice(at, start));
    if (start === text.length) break;
    const tag = readTag(text, start);
    out.strip(tag);
    at = skipSpace(text, tag);
    if (tag.open === '{#') out.lineStarting = text[at - 1] === '\n';
    else if (tag.open === '{%' && /^\s*raw\s*$/.test(tag.body)) at = addRaw(text, tag, out);
    else out.addTag(tag, text[at - 1] === '\n');
  }
  return out.finish();
}

/** Text and tags written so far; the last text is held until the next tag strips it. */
class Output {
  lineStarting = true;
  #done = '';
  #text = '';

  addText(text: string): void {
    this.#text += text;
  }

  /** Strips the white space before a tag. */
  strip({ open, before }: Tag): void {
    const text = this.#text;
    if (before === '-') this.#text = text.trimEnd();
    else if (before === '' && open !== '{{') {
      const line = text.lastIndexOf('\n') + 1;
      if ((line > 0 || this.lineStarting) && text.slice(line).trim() === '') this.#text = text.slice(0, line);
    }
    this.#flush();
  }

  addTag({ open, body }: Tag, lineStarting: boolean): void {
    this.lineStarting = lineStarting;
    const name = open === '{%' ? /^\s*(\w+)/.exec(body)?.[1] : undefined;
    if (name === 'generation' || name === 'endgeneration') return;
    // A statement without a result.
    const done = name === 'do' ? body.replace(/^\s*do\b/, ' set __do__ =') : body;
    if (name === 'with')
      this.#done += `{% filter ${withFilter}(${rewriteExpression(escaped(body.replace(/^\s*with/, '')))}) %}`;
    else if (name === 'endwith') this.#done += '{% endfilter %}';
    else this.#done += `${open}${rewriteExpression(escaped(done))} ${closes[open]}`;
  }

  /** Text that may contain tags. */
  addLiteral(text: string, lineStarting: boolean): void {
    this.lineStarting = lineStarting;
    if (text !== '') this.#done += `{{ ${JSON.stringify(text)} }}`;
  }

  finish(): string {
    this.#flush();
    // The library drops one line end at the end, which jinja2 has dropped here already.
    return this.#done.endsWith('\n') ? `${this.#done}\n` : this.#done;
  }

  #flush(): void {
    const text = this.#text;
    this.#text = '';
    // A brace before a tag would be read as a part of it.
    this.#done += text.endsWith('{') ? `${text.slice(0, -1)}{{ "{" }}` : text;
  }
}

function nextOpen(text: string, from: number): number {
  for (let at = text.indexOf('{', from); at >= 0; at = text.indexOf('{', at + 1)) {
    if ('{%#'.includes(text[at + 1] ?? ' ')) return at;
  }
  return text.length;
}

function readTag(text: string, start: number): Tag {
  const open = text.slice(start, start + 2) as Tag['open'];
  const sign = text[start + 2] ?? '';
  const before = sign === '-' || sign === '+' ? sign : '';
  const from = start + 2 + before.length;
  const close = open === '{#' ? text.indexOf('#}', from) : findClose(text, from, closes[open]);
  if (close < 0) throw new SyntaxError(`'${open}' has no end`);
  const last = text[close - 1] ?? '';
  const after = close > from && (last === '-' || (last === '+' && open !== '{{')) ? last : '';
  return { open, before, after, body: text.slice(from, close - after.length), end: close + 2 };
}

/** Index of the end mark of a tag, outside strings and, for an expression, outside braces. */
function findClose(text: string, from: number, close: '}}' | '%}'): number {
  let depth = 0;
  for (let at = from; at < text.length; at++) {
    const char = text[at] as string;
    if (char === '"' || char === "'") at = stringEnd(text, at);
    else if (text.startsWith(close, at) && (close === '%}' || depth === 0)) return at;
    else if (char === '{') depth++;
    else if (char === '}') depth--;
  }
  return -1;
}

function stringEnd(text: string, start: number): number {
  for (let at = start + 1; at < text.length; at++) {
    if (text[at] === '\\') at++;
    else if (text[at] === text[start]) return at;
  }
  throw new SyntaxError('a string has no end');
}

/** Index after the tag and the white space that it removes. */
function skipSpace(text: string, { open, after, body, end }: Tag): number {
  if (after === '-') {
    let at = end;
    while (at < text.length && (text[at] as string).trim() === '') at++;
    return at;
  }
  const trims = open !== '{{' && after === '' && !(open === '{%' && /^\s*raw\s*$/.test(body));
  return trims && text[end] === '\n' ? end + 1 : end;
}

/** Writes a `raw` block as a string; returns the index after it. */
function addRaw(text: string, raw: Tag, out: Output): number {
  const start = skipSpace(text, raw);
  const found = /\{%([-+]?)\s*endraw\s*([-+]?)%\}/g;
  found.lastIndex = start;
  const match = found.exec(text);
  if (match === null) throw new SyntaxError("'raw' has no end");
  const [whole, before = '', after = ''] = match;
  const end = skipSpace(text, { open: '{%', before, after, body: '', end: match.index + whole.length });
  const content = text.slice(start, match.index);
  const line = content.lastIndexOf('\n') + 1;
  const indented = before === '' && line > 0 && content.slice(line).trim() === '';
  const stripped = before === '-' ? content.trimEnd() : content.slice(0, indented ? line : content.length);
  out.addLiteral(stripped, text[end - 1] === '\n');
  return end;
}

/** A backslash before a character without a special meaning is a part of the string, as in Python. */
function escaped(body: string): string {
  return body.replace(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/gs, (literal) =>
    literal.replace(/\\(.)/gs, (pair, char: string) => (/[ntrbfv'"\\xu]/.test(char) ? pair : `\\\\${char}`)),
  );
}
