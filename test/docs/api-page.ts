// The pages of the library's interface, from the doc comments of what a module exports.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseSync } from 'oxc-parser';
import { root } from '../../scripts/root.mjs';
import { markdownColumnsMax } from '../tidy/prose.ts';
import type { SyntaxNode } from '../tidy/syntax.ts';
import { wrap } from './wrap.ts';

interface Module {
  readonly path: string;
  readonly text: string;
  readonly body: readonly SyntaxNode[];
  readonly comments: readonly {
    readonly type: string;
    readonly start: number;
    readonly end: number;
    readonly value: string;
  }[];
}

interface Declared {
  readonly module: Module;
  readonly node: SyntaxNode;
  /** Of the comment: that of the export statement. */
  readonly start: number;
}

const modules = new Map<string, Module>();

function readModule(path: string): Module {
  const known = modules.get(path);
  if (known !== undefined) return known;
  const text = readFileSync(join(root, path), 'utf8');
  const { program, comments } = parseSync(path, text);
  const module = { path, text, body: program.body as unknown as SyntaxNode[], comments };
  modules.set(path, module);
  return module;
}

/** @param path of the module @param name of the import @param opening what the page says first */
export function apiPage(path: string, name: string, opening: string): string {
  const module = readModule(path);
  const declared = exportsOf(module);
  const kinds = [
    ['Functions', ['FunctionDeclaration']],
    ['Classes', ['ClassDeclaration']],
    ['Interfaces', ['TSInterfaceDeclaration']],
    ['Types', ['TSTypeAliasDeclaration']],
  ] as const;
  const sections = kinds.flatMap(([title, types]) => {
    const found = declared.filter(({ node }) => (types as readonly string[]).includes(node.type));
    return found.length === 0 ? [] : ['', `## ${title}`, ...found.flatMap(describe)];
  });
  const generated =
    'Generated from the doc comments: `npx vitest run test/docs/reference.test.ts -u` writes this page.';
  return `${[`# \`${name}\``, '', ...wrap(`${opening} ${generated}`), ...sections].join('\n')}\n`;
}

/** What a module exports, in the order of names. */
function exportsOf(module: Module): Declared[] {
  const found = module.body.flatMap((statement): Declared[] => {
    if (statement.type !== 'ExportNamedDeclaration') return [];
    const { declaration, specifiers, source } = statement as SyntaxNode & {
      readonly declaration: SyntaxNode | null;
      readonly specifiers: readonly (SyntaxNode & { readonly local: { readonly name: string } })[];
      readonly source: { readonly value: string } | null;
    };
    if (declaration !== null) return [{ module, node: declaration, start: statement.start }];
    if (source === null) return [];
    const other = exportsOf(readModule(join(dirname(module.path), source.value)));
    return specifiers.flatMap(({ local }) => other.filter(({ node }) => nameOf(node) === local.name));
  });
  return found.sort((a, b) => (nameOf(a.node) < nameOf(b.node) ? -1 : 1));
}

function nameOf(node: SyntaxNode): string {
  return (node.id as { readonly name: string } | undefined)?.name ?? '';
}

function describe({ module, node, start }: Declared): string[] {
  const members = membersOf(module, node);
  const isMethod = ({ type, kind }: SyntaxNode): boolean => type === 'MethodDefinition' && kind === 'method';
  const list = members.filter((member) => !isMethod(member)).flatMap((member) => describeMember(module, member));
  const methods = members.filter(isMethod).flatMap((member) => {
    const body = (member.value as SyntaxNode).body as SyntaxNode;
    return entry(
      '####',
      memberName(module, member),
      methodSignature(module, member.start, body.start),
      docOf(module, member),
    );
  });
  const entries = entry('###', nameOf(node), signatureOf(module, node), docBefore(module, start));
  return [...entries, ...(list.length === 0 ? [] : ['', ...list]), ...methods];
}

function entry(level: string, name: string, signature: readonly string[], doc: readonly string[]): string[] {
  return ['', `${level} \`${name}\``, '', '```ts', ...signature, '```', ...(doc.length === 0 ? [] : ['', ...doc])];
}

function memberName({ text }: Module, { key, computed }: SyntaxNode): string {
  const { start, end } = key as SyntaxNode;
  return computed === true ? `[${text.slice(start, end)}]` : text.slice(start, end);
}

const docOf = (module: Module, member: SyntaxNode): string[] => docBefore(module, member.start);

/** Text between two places in one line, as the formatter would write it without a limit. */
function oneLine({ text }: Module, start: number, end: number): string {
  const line = text.slice(start, end).trim().replaceAll(/\s+/g, ' ');
  return line
    .replace(/^(readonly |override |async (?!\*))+/, '')
    .replace(/;$/, '')
    .replaceAll('( ', '(')
    .replaceAll(', )', ')');
}

/** Text of a declaration without its body. */
function signatureOf({ text }: Module, node: SyntaxNode): string[] {
  const { body } = node as { readonly body?: SyntaxNode };
  const end = node.type === 'TSTypeAliasDeclaration' ? node.end : (body?.start ?? node.end);
  const lines = text
    .slice(node.start, end)
    .replace(/\/\*\*.*\*\/\n/g, '')
    .trimEnd()
    .split('\n');
  return lines.map((line) => line.replace(/;$/, '')).filter((line) => line.trim() !== '');
}

/** One line, or the lines of the source where it is too long. */
function methodSignature(module: Module, start: number, end: number): string[] {
  const line = oneLine(module, start, end);
  if (line.length <= markdownColumnsMax) return [line];
  const lines = module.text.slice(start, end).trim().split('\n');
  return lines.map((each) => each.replace(/^ {2}/, '').replace(/^async /, ''));
}

/** Public members; constructors and what an interface has from its base are left out. */
function membersOf(module: Module, { type, body }: SyntaxNode): SyntaxNode[] {
  if (type !== 'TSInterfaceDeclaration' && type !== 'ClassDeclaration') return [];
  return ((body as SyntaxNode).body as SyntaxNode[]).filter((member) => {
    const isPrivate = (member.key as SyntaxNode | undefined)?.type === 'PrivateIdentifier';
    const isInherited = member.override === true && docOf(module, member).length === 0;
    return !isPrivate && !isInherited && member.static !== true && member.kind !== 'constructor';
  });
}

function describeMember(module: Module, member: SyntaxNode): string[] {
  const { value } = member as { readonly value?: { readonly body?: SyntaxNode } | null };
  const code = `- \`${oneLine(module, member.start, value?.body?.start ?? member.end)}\``;
  const doc = docOf(module, member).join(' ');
  return wrap(doc === '' ? code : `${code}: ${doc}`, '', '  ');
}

/** The doc comment that ends before `start`, as lines of Markdown: text, then a list of parameters and errors. */
function docBefore({ text, comments }: Module, start: number): string[] {
  const comment = comments.findLast(({ end }) => end <= start);
  if (comment === undefined || !comment.value.startsWith('*') || text.slice(comment.end, start).trim() !== '')
    return [];
  const plain = comment.value
    .replace(/^\*/, '')
    .split('\n')
    .map((line) => line.replace(/^\s*\*? ?/, ''))
    .join(' ')
    .trim();
  const [description = '', ...tags] = plain.split(/\s*(?=@(?:param|returns|throws|internal)\b)/);
  const items = tags.map((tag) =>
    tag
      .replace(/^@param (\S+)/, '`$1`:')
      .replace(/^@returns /, 'Returns ')
      .replace(/^@throws /, 'Throws '),
  );
  const lines = description === '' ? [] : wrap(description);
  return items.length === 0
    ? lines
    : [...lines, ...(lines.length > 0 ? [''] : []), ...items.flatMap((item) => wrap(`- ${item}`, '', '  '))];
}
