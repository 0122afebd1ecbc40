// Evaluates chat templates as jinja2 does, where Hugging Face's JavaScript library evaluates them differently.

import { Environment, Interpreter } from '@huggingface/jinja';
import { testFilters, tupleFilter } from './jinja-expressions.ts';
import { withFilter } from './jinja-source.ts';
import {
  booleanValue,
  capitalized,
  functionValue,
  integerValue,
  isText,
  isUndefined,
  itemsOf,
  iteratedItems,
  lengthOfValue,
  listValue,
  pythonEquals,
  pythonText,
  strip,
  textMethods,
  textValue,
  undefinedValue,
  type Value,
} from './python-values.ts';

/** A node of a parsed template. */
export interface Node {
  readonly type: string;
}

/** A node with its members, which depend on the type. */
export type Members = Node & Readonly<Record<string, unknown>>;

/** A node that was evaluated before its parent. */
export interface Evaluated extends Node {
  readonly type: 'Evaluated';
  readonly known: Value;
}

/** The members of the library's class that are used here; its own types are not exported. */
type LibraryInterpreter = new (
  environment: Environment,
) => {
  evaluate(node: Node | undefined, environment: Environment): Value;
  run(program: unknown): Value;
  evaluateBinaryExpression(node: Members, environment: Environment): Value;
  evaluateMemberExpression(node: Members, environment: Environment): Value;
  evaluateFilterStatement(node: Members, environment: Environment): Value;
  evaluateTestExpression(node: Members, environment: Environment): Value;
  evaluateFor(node: Members, environment: Environment): Value;
  evaluateBlock(statements: readonly Node[], environment: Environment): Value;
  evaluateArguments(args: readonly Node[], environment: Environment): [Value[], Map<string, Value>];
  applyFilter(operand: Value, filter: Members, environment: Environment): Value;
};

const Library = Interpreter as unknown as LibraryInterpreter;

export const known = (value: Value): Evaluated => ({ type: 'Evaluated', known: value });

/** Statements without a text of their own. */
const silent: ReadonlySet<string> = new Set(['Set', 'Macro', 'Comment']);
const textFilters: ReadonlySet<string> = new Set(['upper', 'lower', 'title', 'replace', 'indent']);

interface FilterCall {
  readonly operand: Value;
  readonly args: readonly Value[];
  readonly named: ReadonlyMap<string, Value>;
  readonly nodes: readonly Node[];
  readonly environment: Environment;
}

/** A `break` or `continue` on its way to its loop, with the text that the loop's body has written before it. */
class LoopControl extends Error {
  text = '';
  readonly breaks: boolean;
  constructor(breaks: boolean) {
    super(`'${breaks ? 'break' : 'continue'}' outside a loop`);
    this.breaks = breaks;
  }
}

/** A loop in progress; `lastText` is the text of the round that a `break` ended. */
interface Loop {
  lastText?: string;
}

export class JinjaInterpreter extends Library {
  override evaluate(node: Node | undefined, environment: Environment): Value {
    const { body, loop } = (node ?? {}) as { body: Node[]; loop: Loop };
    switch (node?.type) {
      case 'Evaluated':
        return (node as Evaluated).known;
      case 'Break':
      case 'Continue':
        throw new LoopControl(node.type === 'Break');
      case 'LoopBody':
        return this.#round(body, loop, environment);
      case 'LoopElse':
        return loop.lastText === undefined ? this.evaluateBlock(body, environment) : textValue('');
      default:
        return super.evaluate(node, environment);
    }
  }

  /** One round of a loop. The library drops the text before a `break` or `continue`. */
  #round(body: readonly Node[], loop: Loop, environment: Environment): Value {
    try {
      return this.evaluateBlock(body, environment);
    } catch (error) {
      if (!(error instanceof LoopControl)) throw error;
      if (!error.breaks) return textValue(error.text);
      loop.lastText = error.text;
      return super.evaluate({ type: 'Break' }, environment);
    }
  }

  /** Charges work that no evaluated node accounts for. */
  protected spend(_work: number): void {}

  override evaluateBlock(statements: readonly Node[], environment: Environment): Value {
    let text = '';
    try {
      for (const statement of statements) {
        const value = this.evaluate(statement, environment);
        if (!silent.has(statement.type)) text += pythonText(value);
      }
    } catch (error) {
      if (error instanceof LoopControl) error.text = text + error.text;
      throw error;
    }
    return textValue(text);
  }

  override evaluateBinaryExpression(node: Members, environment: Environment): Value {
    const operator = (node.operator as Members).value as string;
    if (operator === 'and' || operator === 'or') return super.evaluateBinaryExpression(node, environment);
    const left = this.evaluate(node.left as Node, environment);
    const right = this.evaluate(node.right as Node, environment);
    return (
      this.#operation(operator, left, right) ??
      super.evaluateBinaryExpression({ ...node, left: known(left), right: known(right) }, environment)
    );
  }

  /** The result where jinja2's differs from the library's; else undefined. */
  #operation(operator: string, left: Value, right: Value): Value | undefined {
    switch (operator) {
      case '==':
        return booleanValue(this.#equal(left, right));
      case '!=':
        return booleanValue(!this.#equal(left, right));
      case 'in':
      case 'not in': {
        const items = isText(right) ? undefined : iteratedItems(right);
        if (items === undefined) return undefined;
        return booleanValue(items.some((item) => this.#equal(left, item)) === (operator === 'in'));
      }
      case '~':
        return textValue(pythonText(left) + pythonText(right));
      case '%':
        return modulo(left, right);
      case '<':
        return isText(left) && isText(right) ? booleanValue(left.value < right.value) : undefined;
      case '>':
        return isText(left) && isText(right) ? booleanValue(left.value > right.value) : undefined;
      default:
        return undefined;
    }
  }

  #equal(left: Value, right: Value): boolean {
    return pythonEquals(left, right, () => this.spend(comparisonWork));
  }

  override evaluateMemberExpression(node: Members, environment: Environment): Value {
    const object = this.evaluate(node.object as Node, environment);
    const property = node.property as Members;
    const isSlice = property.type === 'SliceExpression';
    const computed = node.computed === true && !isSlice ? this.evaluate(property, environment) : undefined;
    const name = computed === undefined ? property.value : computed.value;
    const method = isText(object) && !isSlice ? textMethods.get(String(name)) : undefined;
    if (isText(object) && method !== undefined) {
      const text = object.value;
      return functionValue((args) => {
        const named = args.at(-1)?.type === 'KeywordArgumentsValue' ? args.at(-1) : undefined;
        const positional = named === undefined ? args : args.slice(0, -1);
        return method(text, positional, (named?.value as Map<string, Value> | undefined) ?? new Map());
      });
    }
    // jinja2's sandbox refuses it; templates written for other engines use it.
    if (object.type === 'ArrayValue' && name === 'append' && !isSlice)
      return functionValue(([item = undefinedValue()]) => {
        (object.value as Value[]).push(item);
        return textValue('');
      });
    const rest = computed === undefined ? node : { ...node, property: known(computed) };
    return super.evaluateMemberExpression({ ...rest, object: known(object) }, environment);
  }

  override evaluateFilterStatement(node: Members, environment: Environment): Value {
    const filter = node.filter as Members;
    if (filterName(filter) !== withFilter) return super.evaluateFilterStatement(node, environment);
    const [, named] = this.evaluateArguments(nodesOf(filter), environment);
    const scope = new Environment(environment);
    for (const [name, value] of named) scope.setVariable(name, value as Parameters<Environment['setVariable']>[1]);
    return this.evaluateBlock(node.body as Node[], scope);
  }

  override evaluateTestExpression(node: Members, environment: Environment): Value {
    if ((node.test as Members).value !== 'iterable') return super.evaluateTestExpression(node, environment);
    const iterable = iteratedItems(this.evaluate(node.operand as Node, environment)) !== undefined;
    return booleanValue(iterable !== (node.negate === true));
  }

  override evaluateFor(node: Members, environment: Environment): Value {
    const iterable = node.iterable as Members;
    const selects = iterable.type === 'SelectExpression';
    const value = this.evaluate((selects ? iterable.lhs : iterable) as Node, environment);
    const items = iteratedItems(value);
    if (items === undefined) throw new Error(`it loops over a value that is not iterable: ${pythonText(value)}`);
    // The library unpacks lists only.
    const list = items.map((item) => (item.type === 'TupleValue' ? listValue(itemsOf(item) ?? []) : item));
    const evaluated = known(listValue(list));
    const loop: Loop = {};
    const text = super.evaluateFor(
      {
        ...node,
        iterable: selects ? { ...iterable, lhs: evaluated } : evaluated,
        body: [{ type: 'LoopBody', body: node.body, loop }],
        defaultBlock: [{ type: 'LoopElse', body: node.defaultBlock, loop }],
      },
      environment,
    );
    return textValue(pythonText(text) + (loop.lastText ?? ''));
  }

  override applyFilter(operand: Value, filter: Members, environment: Environment): Value {
    const own = this.#filters[filterName(filter)];
    if (own !== undefined) {
      const nodes = nodesOf(filter);
      const [args, named] = this.evaluateArguments(nodes, environment);
      const result = own({ operand, args, named, nodes, environment });
      if (result !== undefined) return result;
      const evaluated = [...args.map(known), ...[...named].map(([key, value]) => namedArgument(key, value))];
      return super.applyFilter(operand, evaluated.length === 0 ? filter : { ...filter, args: evaluated }, environment);
    }
    const converted = textFilters.has(filterName(filter)) && !isText(operand);
    return super.applyFilter(converted ? textValue(pythonText(operand)) : operand, filter, environment);
  }

  /** Filters that differ from the library's; an undefined result leaves the value to the library's filter. */
  readonly #filters: Readonly<Record<string, ((call: FilterCall) => Value | undefined) | undefined>> = {
    __proto__: null as never,
    trim: ({ operand, args, named }) => textValue(strip(pythonText(operand), args[0] ?? named.get('chars'))),
    capitalize: ({ operand }) => textValue(capitalized(pythonText(operand))),
    string: ({ operand }) => textValue(pythonText(operand)),
    length: ({ operand }) => lengthResult(operand),
    count: ({ operand }) => lengthResult(operand),
    list: ({ operand }) => listResult(operand),
    first: ({ operand }) => iteratedItems(operand)?.[0] ?? undefinedValue(),
    last: ({ operand }) => iteratedItems(operand)?.at(-1) ?? undefinedValue(),
    reverse: ({ operand }) =>
      isText(operand) ? textValue(Array.from(operand.value).reverse().join('')) : reversed(operand),
    default: ({ operand, args, named }) => defaultResult(operand, args, named),
    d: ({ operand, args, named }) => defaultResult(operand, args, named),
    items: ({ operand }) => (isUndefined(operand) ? listValue([]) : undefined),
    join: ({ operand, args, named }) => {
      const items = iteratedItems(operand);
      if (items === undefined || named.has('attribute')) return undefined;
      const separator = args[0] ?? named.get('d');
      return textValue(items.map(pythonText).join(separator === undefined ? '' : pythonText(separator)));
    },
    map: ({ operand, args, nodes, environment }) => {
      const [name] = args;
      const items = iteratedItems(operand);
      if (items === undefined || !isText(name)) return items?.length === 0 ? listValue([]) : undefined;
      const filter = {
        type: 'CallExpression',
        callee: { type: 'Identifier', value: name.value },
        args: nodes.slice(1),
      };
      const call = nodes.length === 1 ? filter.callee : filter;
      return listValue(
        items.map((item) =>
          this.evaluate({ type: 'FilterExpression', operand: known(item), filter: call } as Node, environment),
        ),
      );
    },
    [tupleFilter]: ({ operand, environment }) =>
      this.evaluate({ type: 'TupleLiteral', value: (itemsOf(operand) ?? []).map(known) } as Node, environment),
    [testFilters[0]]: ({ operand, args: [test, argument], environment }) =>
      booleanValue(this.#testOf(test, argument, environment)(operand)),
    [testFilters[1]]: ({ operand, args: [test, argument], environment }) =>
      booleanValue(!this.#testOf(test, argument, environment)(operand)),
    select: (call) => this.#selected(call, undefined, true),
    reject: (call) => this.#selected(call, undefined, false),
    selectattr: (call) => this.#selected(call, call.args[0], true),
    rejectattr: (call) => this.#selected(call, call.args[0], false),
  };

  #selected({ operand, args, environment }: FilterCall, attribute: Value | undefined, selects: boolean): Value {
    const items = iteratedItems(operand);
    if (items === undefined) throw new Error(`it selects from a value that is not iterable: ${pythonText(operand)}`);
    const [test, argument] = attribute === undefined ? args : args.slice(1);
    const passes = this.#testOf(test, argument, environment);
    return listValue(
      items.filter((item) => passes(attribute === undefined ? item : member(item, attribute)) === selects),
    );
  }

  #testOf(test: Value | undefined, argument: Value | undefined, environment: Environment): (value: Value) => boolean {
    if (test === undefined) return (value) => (value as unknown as { __bool__(): Value }).__bool__().value === true;
    const name = pythonText(test);
    if (name === 'divisibleby' && argument !== undefined) return (value) => modulo(value, argument)?.value === 0;
    const operator = testOperators[name];
    if (operator !== undefined) {
      const evaluated = { type: 'BinaryExpression', operator: { value: operator }, right: known(argument as Value) };
      return (value) => this.evaluate({ ...evaluated, left: known(value) } as Node, environment).value === true;
    }
    return (value) =>
      this.evaluate({ type: 'TestExpression', operand: known(value), test: { value: name } } as Node, environment)
        .value === true;
  }
}

/** Work of one comparison of two values. */
const comparisonWork = 0.25;

const testOperators: Readonly<Record<string, string | undefined>> = {
  __proto__: null as never,
  '==': '==',
  eq: '==',
  equalto: '==',
  sameas: '==',
  '!=': '!=',
  ne: '!=',
  in: 'in',
  '<': '<',
  lt: '<',
  lessthan: '<',
  '<=': '<=',
  le: '<=',
  '>': '>',
  gt: '>',
  greaterthan: '>',
  '>=': '>=',
  ge: '>=',
};

export function filterName(filter: Members): string {
  const name = (filter.type === 'CallExpression' ? filter.callee : filter) as Members | undefined;
  return typeof name?.value === 'string' ? name.value : '';
}

const nodesOf = (filter: Members): readonly Node[] => (Array.isArray(filter.args) ? (filter.args as Node[]) : []);
const namedArgument = (key: string, value: Value): Members => ({
  type: 'KeywordArgumentExpression',
  key: { type: 'Identifier', value: key },
  value: known(value),
});

/** Python's `%` of numbers: the result has the sign of the divisor. */
function modulo(left: Value, right: Value): Value | undefined {
  if (typeof left.value !== 'number' || typeof right.value !== 'number') return undefined;
  if (right.value === 0) throw new Error('it divides by zero');
  const result = left.value % right.value;
  const signed = result !== 0 && result < 0 !== right.value < 0 ? result + right.value : result;
  return left.type === 'IntegerValue' && right.type === 'IntegerValue' ? integerValue(signed) : undefined;
}

function lengthResult(value: Value): Value {
  const length = lengthOfValue(value);
  if (length === undefined) throw new Error(`it takes the length of a value without one: ${pythonText(value)}`);
  return integerValue(length);
}

function listResult(value: Value): Value {
  const items = iteratedItems(value);
  if (items === undefined) throw new Error(`it makes a list of a value that is not iterable: ${pythonText(value)}`);
  return listValue(items);
}

function reversed(value: Value): Value | undefined {
  const items = iteratedItems(value);
  return items === undefined ? undefined : listValue([...items].reverse());
}

function defaultResult(operand: Value, args: readonly Value[], named: ReadonlyMap<string, Value>): Value {
  const replaces = (args[1] ?? named.get('boolean'))?.value === true;
  const isFalse = (operand as unknown as { __bool__(): Value }).__bool__().value !== true;
  if (!isUndefined(operand) && !(replaces && isFalse)) return operand;
  return args[0] ?? named.get('default_value') ?? textValue('');
}

function member(item: Value, path: Value): Value {
  let value: Value = item;
  for (const part of pythonText(path).split('.')) {
    const next =
      value.value instanceof Map ? (value.value.get(part) as Value | undefined) : itemsOf(value)?.[Number(part)];
    if (next === undefined) return undefinedValue();
    value = next;
  }
  return value;
}
