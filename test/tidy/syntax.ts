// The syntax that the tidy rules need: imports, names, members and function lengths.
import { parseSync } from 'oxc-parser';
import type { SourceFile } from './source-tree.ts';

export interface SyntaxNode {
  readonly type: string;
  readonly start: number;
  readonly end: number;
  readonly [field: string]: unknown;
}

export interface FunctionSpan {
  readonly line: number;
  readonly lines: number;
}

export interface FileSyntax {
  /** Module specifiers of imports, re-exports, dynamic imports and import types. */
  readonly imports: readonly string[];
  /** Names used as values or types, without property names. */
  readonly names: ReadonlySet<string>;
  /** Members as `object.property`, where the object is a plain identifier. */
  readonly members: ReadonlySet<string>;
  readonly functions: readonly FunctionSpan[];
}

const functionTypes = new Set(['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression']);
const propertyOwners = new Set([
  'Property',
  'MethodDefinition',
  'PropertyDefinition',
  'TSPropertySignature',
  'TSMethodSignature',
]);

/** Throws when the file does not parse. */
export function readSyntax(file: SourceFile): FileSyntax {
  const { program, errors } = parseSync(file.path, file.text);
  if (errors.length > 0) throw new Error(`Cannot parse ${file.path}: ${errors[0]?.message}`);
  const imports: string[] = [];
  const names = new Set<string>();
  const members = new Set<string>();
  const functions: FunctionSpan[] = [];
  visit(program as unknown as SyntaxNode, (node) => {
    if (isNode(node.source) && typeof node.source.value === 'string') imports.push(node.source.value);
    if (node.type === 'Identifier' && typeof node.name === 'string') names.add(node.name);
    const member = memberName(node);
    if (member !== undefined) members.add(member);
    if (functionTypes.has(node.type)) functions.push(spanOf(file.text, node));
  });
  return { imports, names, members, functions };
}

function visit(node: SyntaxNode, onNode: (node: SyntaxNode) => void): void {
  onNode(node);
  for (const [field, value] of Object.entries(node)) {
    if (isPropertyName(node, field)) continue;
    for (const child of Array.isArray(value) ? value : [value]) if (isNode(child)) visit(child, onNode);
  }
}

/** True for the child that merely names a property: `b` of `a.b` and `{ b: 1 }`. */
function isPropertyName(node: SyntaxNode, field: string): boolean {
  if (node.computed === true) return false;
  if (node.type === 'MemberExpression') return field === 'property';
  // In `{ b }` key and value are one identifier, and the value is still visited.
  return propertyOwners.has(node.type) && field === 'key';
}

function memberName(node: SyntaxNode): string | undefined {
  if (node.type !== 'MemberExpression' || !isNode(node.object) || !isNode(node.property)) return undefined;
  const property = node.property.name ?? node.property.value;
  return typeof node.object.name === 'string' ? `${node.object.name}.${property}` : undefined;
}

function spanOf(text: string, node: SyntaxNode): FunctionSpan {
  const line = text.slice(0, node.start).split('\n').length;
  return { line, lines: text.slice(node.start, node.end).split('\n').length };
}

function isNode(value: unknown): value is SyntaxNode {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';
}
