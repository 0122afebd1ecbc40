// Runs a chat template within limits of work and memory, because templates come with model files and are not reviewed.

import type { Environment } from '@huggingface/jinja';
import { type Evaluated, filterName, JinjaInterpreter, known, type Members, type Node } from './jinja-interpreter.ts';
import type { Value } from './python-values.ts';

/** Items of any list that a template makes; the library uses a few kilobytes for each. */
export const listItemsMax = 20_000;

/** Limit of evaluated nodes: a constant, plus so many for each input character. */
const workBase = 500_000;
const workPerCharacter = 20;
/** Limit of characters in any text that a template makes: a constant, plus so many for each input character. */
const charactersBase = 1_000_000;
const charactersPerCharacter = 4;
/** Characters of a text, or items of a list, that count as one unit of work. */
const charactersPerWork = 64;
const itemsPerWork = 2;
const workPerRound = 5;
const indentMax = 64;

const expandingFilters: ReadonlySet<string> = new Set(['replace', 'join', 'indent', 'tojson', 'string']);

/** @throws Error when a limit is exceeded, as for any other failure of a template */
export class BoundedInterpreter extends JinjaInterpreter {
  #workLeft: number;
  readonly #charactersMax: number;
  /** Nodes with a value that is written out as text. */
  readonly #written = new WeakSet<object>();
  /** Nodes with a value that is only searched: its size costs no work. */
  readonly #lookedUp = new WeakSet<object>();
  /** Nodes that a loop iterates over: each item costs work, even if the loop is empty. */
  readonly #loopedOver = new WeakSet<object>();

  /** @param characters of the template and its input */
  constructor(environment: Environment, characters: number) {
    super(environment);
    this.#workLeft = workBase + workPerCharacter * characters;
    this.#charactersMax = charactersBase + charactersPerCharacter * characters;
  }

  override evaluate(node: Node | undefined, environment: Environment): Value {
    if (node === undefined || node === null) return super.evaluate(node, environment);
    if (isEvaluated(node)) return node.known;
    this.#spend(1);
    const members = node as Members;
    this.#recordUses(members);
    const value = isMethod(members)
      ? this.#method(members, environment)
      : super.evaluate(this.#prepared(members, environment), environment);
    this.#charge(node, value);
    return value;
  }

  protected override spend(work: number): void {
    this.#spend(work);
  }

  #spend(work: number): void {
    this.#workLeft -= work;
    if (this.#workLeft < 0) throw new Error('it takes too many steps');
  }

  #checkLength(characters: number): void {
    if (characters > this.#charactersMax)
      throw new Error(`it makes a text of more than ${this.#charactersMax} characters`);
  }

  /** Records how the node uses the values of its children. */
  #recordUses(node: Members): void {
    for (const name of ['body', 'alternate', 'defaultBlock']) {
      const statements = node[name];
      if (Array.isArray(statements))
        for (const statement of statements) if (isNode(statement)) this.#written.add(statement);
    }
    const { object, property, operand } = node;
    const slices = isNode(property) && property.type === 'SliceExpression';
    if (node.type === 'MemberExpression' && isNode(object) && !slices) this.#lookedUp.add(object);
    if (node.type === 'TestExpression' && isNode(operand)) this.#lookedUp.add(operand);
    const { iterable } = node;
    if (node.type === 'For' && isNode(iterable)) this.#loopedOver.add(isNode(iterable.lhs) ? iterable.lhs : iterable);
  }

  /** The node itself. If its text could be far larger than its operands, they are evaluated and measured first. */
  #prepared(node: Members, environment: Environment): Node {
    if (node.type === 'BinaryExpression' && isSum(node)) return this.#preparedSum(node, environment);
    const filter = node.filter;
    if (!isNode(filter) || !expandingFilters.has(filterName(filter)) || node.type !== 'FilterExpression') return node;
    const operand = this.#evaluated(node.operand, environment);
    const args = (Array.isArray(filter.args) ? filter.args : []).map((argument) =>
      this.#argument(argument, environment),
    );
    const values = args.map(
      (argument) => (isEvaluated(argument) ? argument : (argument as Members).value) as Evaluated,
    );
    this.#checkFilter(
      filterName(filter),
      operand.known,
      values.map((value) => value.known),
    );
    return { ...node, operand, filter: filter.type === 'Identifier' ? filter : { ...filter, args } } as Node;
  }

  #preparedSum(node: Members, environment: Environment): Node {
    const left = this.#evaluated(node.left, environment);
    const right = this.#evaluated(node.right, environment);
    // A sum of a list and a text writes the list out as text.
    if (!(isList(left.known) && isList(right.known)))
      this.#checkLength(sizeOf(left.known, this.#charactersMax) + sizeOf(right.known, this.#charactersMax));
    return { ...node, left, right } as Node;
  }

  #argument(argument: unknown, environment: Environment): Node {
    const node = argument as Members;
    if (node.type === 'SpreadExpression') throw new Error('a text filter does not accept a list of arguments');
    if (node.type !== 'KeywordArgumentExpression') return this.#evaluated(node, environment);
    return { ...node, value: this.#evaluated(node.value, environment) } as Node;
  }

  #evaluated(node: unknown, environment: Environment): Evaluated {
    return known(this.evaluate(node as Node, environment));
  }

  #checkFilter(name: string, operand: Value, args: readonly Value[]): void {
    const [first] = args;
    const numbers = args.map(({ value }) => (typeof value === 'number' ? value : 0));
    if (Math.max(0, ...numbers) > indentMax && name !== 'replace')
      throw new Error(`'${name}' takes numbers up to ${indentMax}`);
    if (name === 'replace') this.#checkReplacement(operand, args);
    else if (name === 'join')
      this.#checkLength(sizeOf(operand, this.#charactersMax) + lengthOf(operand) * lengthOf(first));
    else this.#checkLength(sizeOf(operand, this.#charactersMax) * (name === 'indent' || numbers.length > 0 ? 4 : 1));
  }

  #checkReplacement(operand: Value, args: readonly Value[]): void {
    const [from, to] = args;
    if (typeof operand.value !== 'string' || typeof from?.value !== 'string' || typeof to?.value !== 'string') return;
    this.#checkLength(operand.value.length + occurrences(operand.value, from.value) * to.value.length);
  }

  #charge(node: Node, value: Value): void {
    if (typeof value?.value === 'string') {
      this.#checkLength(value.value.length);
      this.#spend(value.value.length / charactersPerWork);
    } else if (isList(value)) {
      const items = lengthOf(value);
      checkItems(items);
      if (this.#loopedOver.has(node)) this.#spend(items * workPerRound);
      else if (!this.#lookedUp.has(node)) this.#spend(items / itemsPerWork);
    }
    if (this.#written.has(node)) this.#checkLength(sizeOf(value, this.#charactersMax));
  }

  /** String methods check the size of their result first. */
  #method(node: Members, environment: Environment): Value {
    const object = this.#evaluated(node.object, environment);
    const property = node.computed === true ? this.#evaluated(node.property, environment) : (node.property as Node);
    const method = super.evaluate({ ...node, object, property } as Node, environment);
    const name = isEvaluated(property) ? property.known.value : (property as Members).value;
    const run: unknown = method.value;
    if (method.type !== 'FunctionValue' || typeof run !== 'function') return method;
    const measured = (args: Value[], scope: Environment): unknown => {
      if (name === 'replace') this.#checkReplacement(object.known, args);
      if (name === 'join' && args[0] !== undefined) {
        const size = sizeOf(args[0], this.#charactersMax) + lengthOf(args[0]) * lengthOf(object.known);
        this.#checkLength(size);
      }
      if (name === 'split') checkItems(pieceCount(object.known.value, args[0]?.value));
      return run.call(method, args, scope);
    };
    return Object.create(method, { value: { value: measured } }) as Value;
  }
}

function checkItems(items: number): void {
  if (items > listItemsMax) throw new Error(`it makes a list of more than ${listItemsMax} items`);
}

const isNode = (value: unknown): value is Members => typeof value === 'object' && value !== null && 'type' in value;
const isEvaluated = (node: Node): node is Evaluated => node.type === 'Evaluated';
const isList = (value: Value): boolean => Array.isArray(value?.value);
const lengthOf = (value: Value | undefined): number =>
  typeof value?.value === 'string' || Array.isArray(value?.value) ? value.value.length : 0;

function isSum({ operator }: Members): boolean {
  const sign = isNode(operator) ? operator.value : undefined;
  return sign === '+' || sign === '~';
}

/** True if this may be a string method with a large result: by name, or by a computed name. */
function isMethod({ type, computed, property }: Members): boolean {
  if (type !== 'MemberExpression' || !isNode(property)) return false;
  if (computed === true) return property.type !== 'SliceExpression' && property.type !== 'IntegerLiteral';
  return ['replace', 'split', 'join'].includes(String(property.value));
}

/** Approximate length of a value written out; counting stops soon after `most`. */
function sizeOf(value: Value, most: number): number {
  let size = 0;
  const open: unknown[] = [value];
  while (open.length > 0 && size <= most) {
    const inner = (open.pop() as Value | undefined)?.value;
    if (typeof inner === 'string') size += inner.length + 4;
    else if (Array.isArray(inner)) open.push(...inner);
    else if (inner instanceof Map) {
      for (const [key, member] of inner) {
        size += key.length + 4;
        open.push(member);
      }
    } else size += 8;
  }
  return size;
}

/** Number of pieces of a split text; counting stops at one more than allowed. */
function pieceCount(text: unknown, separator: unknown): number {
  if (typeof text !== 'string') return 0;
  if (typeof separator === 'string') return separator === '' ? 0 : 1 + occurrences(text, separator);
  let parts = 0;
  for (const _ of text.matchAll(/\S+/g)) if (++parts > listItemsMax) break;
  return parts;
}

function occurrences(text: string, part: string): number {
  if (part === '') return text.length + 1;
  let times = 0;
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length)) times++;
  return times;
}
