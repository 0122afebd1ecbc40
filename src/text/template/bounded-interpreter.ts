// Runs a template's program within bounds: templates come with model files, and nobody has read them.

import { type Environment, Interpreter } from '@huggingface/jinja';

/** Items of any list that a template makes: each of them is a few kilobytes in the library's hands. */
export const listItemsMax = 20_000;

/** Evaluated nodes that any template may have, and those it may have for each character it is given. */
const workBase = 500_000;
const workPerCharacter = 20;
/** Characters of any text that a template makes, and more for each character it is given. */
const charactersBase = 1_000_000;
const charactersPerCharacter = 4;
/** One unit of work goes through so many characters of a text, or items of a list. */
const charactersPerWork = 64;
const itemsPerWork = 2;
const workPerRound = 5;
const indentMax = 64;

/** A part of a parsed template. */
interface Node {
  readonly type: string;
}

/** A value of a running template, by the library's names of types. */
interface Value {
  readonly type: string;
  readonly value: unknown;
}

/** What we use of the library's class, whose own types do not reach us. */
type LibraryInterpreter = new (
  environment: Environment,
) => {
  evaluate(node: Node | undefined, environment: Environment): Value;
  run(program: unknown): Value;
};

const Library: LibraryInterpreter = Interpreter;

/** Nodes by their members; which there are depends on the type. */
type Members = Node & Readonly<Record<string, unknown>>;

/** A node that was evaluated before its parent: text that would grow is measured before it is made. */
interface Evaluated extends Node {
  readonly type: 'Evaluated';
  readonly known: Value;
}

const growing: ReadonlySet<string> = new Set(['replace', 'join', 'indent', 'tojson', 'string']);

/** @throws Error past a bound, as for any other failure of a template */
export class BoundedInterpreter extends Library {
  #workLeft: number;
  readonly #charactersMax: number;
  /** Nodes whose value is written out as text. */
  readonly #written = new WeakSet<object>();
  /** Nodes whose value is only looked up in: no work for its size. */
  readonly #lookedUp = new WeakSet<object>();
  /** Nodes whose items each begin a round of a loop, which costs although nothing is in it. */
  readonly #loopedOver = new WeakSet<object>();

  /** @param characters of the template and of what it is given */
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
    this.#note(members);
    const value = isMethod(members)
      ? this.#method(members, environment)
      : super.evaluate(this.#prepared(members, environment), environment);
    this.#charge(node, value);
    return value;
  }

  #spend(work: number): void {
    this.#workLeft -= work;
    if (this.#workLeft < 0) throw new Error('it takes too many steps');
  }

  #checkLength(characters: number): void {
    if (characters > this.#charactersMax)
      throw new Error(`it makes a text of more than ${this.#charactersMax} characters`);
  }

  /** Remembers what the node does with the values of the nodes in it. */
  #note(node: Members): void {
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

  /** The node as it is, or with operands evaluated and measured where its text could be far larger than they are. */
  #prepared(node: Members, environment: Environment): Node {
    if (node.type === 'BinaryExpression' && isSum(node)) return this.#preparedSum(node, environment);
    const filter = node.filter;
    if (!isNode(filter) || !growing.has(filterName(filter)) || node.type !== 'FilterExpression') return node;
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
    // A list beside a text is written out.
    if (!(isList(left.known) && isList(right.known)))
      this.#checkLength(sizeOf(left.known, this.#charactersMax) + sizeOf(right.known, this.#charactersMax));
    return { ...node, left, right } as Node;
  }

  #argument(argument: unknown, environment: Environment): Node {
    const node = argument as Members;
    if (node.type === 'SpreadExpression') throw new Error('a filter that makes text takes no list of arguments');
    if (node.type !== 'KeywordArgumentExpression') return this.#evaluated(node, environment);
    return { ...node, value: this.#evaluated(node.value, environment) } as Node;
  }

  #evaluated(node: unknown, environment: Environment): Evaluated {
    return { type: 'Evaluated', known: this.evaluate(node as Node, environment) };
  }

  #checkFilter(name: string, operand: Value, args: readonly Value[]): void {
    const [first] = args;
    const numbers = args.map(({ value }) => (typeof value === 'number' ? value : 0));
    if (Math.max(0, ...numbers) > indentMax && name !== 'replace')
      throw new Error(`'${name}' asks for more than ${indentMax}`);
    if (name === 'replace') this.#checkReplacement(operand, args);
    else if (name === 'join')
      this.#checkLength(sizeOf(operand, this.#charactersMax) + lengthOf(operand) * lengthOf(first));
    else this.#checkLength(sizeOf(operand, this.#charactersMax) * (name === 'indent' || numbers.length > 0 ? 4 : 1));
  }

  #checkReplacement(operand: Value, args: readonly Value[]): void {
    const [from, to] = args;
    if (typeof operand.value !== 'string' || typeof from?.value !== 'string' || typeof to?.value !== 'string') return;
    this.#checkLength(operand.value.length + timesIn(operand.value, from.value) * to.value.length);
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

  /** A text's own methods measure what they will make. */
  #method(node: Members, environment: Environment): Value {
    const object = this.#evaluated(node.object, environment);
    const property = node.computed === true ? this.#evaluated(node.property, environment) : (node.property as Node);
    const method = super.evaluate({ ...node, object, property } as Node, environment);
    const name = isEvaluated(property) ? property.known.value : (property as Members).value;
    const run: unknown = method.value;
    if (method.type !== 'FunctionValue' || typeof run !== 'function') return method;
    const measured = (args: Value[], scope: Environment): unknown => {
      if (name === 'replace') this.#checkReplacement(object.known, args);
      if (name === 'split') checkItems(partsOf(object.known.value, args[0]?.value));
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

/** Whether this may be a method of a text that makes far more than the text: by name, or by a name that is computed. */
function isMethod({ type, computed, property }: Members): boolean {
  if (type !== 'MemberExpression' || !isNode(property)) return false;
  if (computed === true) return property.type !== 'SliceExpression' && property.type !== 'IntegerLiteral';
  return property.value === 'replace' || property.value === 'split';
}

function filterName(filter: Members): string {
  const name = filter.type === 'CallExpression' ? filter.callee : filter;
  return isNode(name) && typeof name.value === 'string' ? name.value : '';
}

/** Characters of a value written out, about; counts no further than past `most`. */
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

/** How many pieces a text is split into, at most one more than are allowed. */
function partsOf(text: unknown, separator: unknown): number {
  if (typeof text !== 'string') return 0;
  if (typeof separator === 'string') return separator === '' ? 0 : 1 + timesIn(text, separator);
  let parts = 0;
  for (const _ of text.matchAll(/\S+/g)) if (++parts > listItemsMax) break;
  return parts;
}

function timesIn(text: string, part: string): number {
  if (part === '') return text.length + 1;
  let times = 0;
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length)) times++;
  return times;
}
