// Loads XGrammar, a grammar engine in WebAssembly. Each call creates an instance of its own, since an error ends an instance.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { compileFunction } from 'node:vm';

/** Objects of an instance live in its memory until they are disposed. */
interface Disposable {
  dispose(): void;
}

export interface XgrammarMatcher extends Disposable {
  acceptToken(id: number): boolean;
  isTerminated(): boolean;
  getNextTokenBitmask(): Promise<Int32Array>;
}

type SchemaArguments = [
  schema: string,
  anyWhitespace: boolean,
  indent: number,
  separators: [string, string] | undefined,
  strictMode: boolean,
  whitespaceMax: number,
];

export interface XgrammarCompiler extends Disposable {
  compileGrammar(ebnf: string): Promise<Disposable>;
  compileStructuralTag(tag: object): Promise<Disposable>;
}

/** The part of the package that is used here. */
export interface Xgrammar {
  readonly TokenizerInfo: {
    createTokenizerInfo(
      vocabulary: readonly Uint8Array[],
      kind: 'raw',
      prependsSpace: boolean,
      size: number,
      stopTokenIds: readonly number[],
    ): Promise<Disposable>;
  };
  readonly GrammarCompiler: {
    createGrammarCompiler(info: Disposable, cacheEnabled: boolean): Promise<XgrammarCompiler>;
  };
  readonly Grammar: {
    fromEBNF(ebnf: string): Promise<Disposable>;
    fromJSONSchema(...schema: SchemaArguments): Promise<Disposable & { toString(): string }>;
    fromStructuralTag(tag: object): Promise<Disposable>;
  };
  readonly GrammarMatcher: { createGrammarMatcher(compiled: Disposable): Promise<XgrammarMatcher> };
}

export interface XgrammarInstance {
  readonly api: Xgrammar;
  /** Bytes of its memory, which never shrinks. */
  readonly memoryBytes: number;
  /** What it has written to the console since the last call: the reason of an error. */
  takeMessages(): readonly string[];
}

const require = createRequire(import.meta.url);

/**
 * The package declares ES modules, but its only file is a UMD module: it is evaluated as CommonJS.
 * @param memoryBytesMax memory beyond which an allocation fails, and ends the instance
 */
export function createXgrammar(memoryBytesMax: number): XgrammarInstance {
  const path = require.resolve('@mlc-ai/web-xgrammar');
  const messages: string[] = [];
  const write = (...parts: readonly unknown[]): void => void messages.push(parts.join(' '));
  const bound = boundedAssembly(memoryBytesMax);
  const names = ['exports', 'module', 'require', '__filename', 'console', 'WebAssembly'];
  // A function that is compiled from text has no dynamic import.
  const source = readFileSync(path, 'utf8').replace("await import('module')", "require('module')");
  const evaluate = compileFunction(source, names, { filename: path });
  const exported = {};
  const log = { log: write, error: write, warn: write };
  evaluate(exported, { exports: exported }, createRequire(path), path, log, bound.assembly);
  return {
    api: exported as Xgrammar,
    get memoryBytes() {
      return bound.memory?.buffer.byteLength ?? 0;
    },
    takeMessages: () => messages.splice(0),
  };
}

/** The memory of an instance of WebAssembly, as far as it is used here. */
interface LinearMemory {
  readonly buffer: ArrayBuffer;
  grow(pages: number): number;
}

interface Instance {
  readonly exports: Readonly<Record<string, unknown>>;
}

interface Assembly {
  readonly Memory: new (...args: never[]) => LinearMemory;
  compile(source: Uint8Array): Promise<object>;
  instantiate(module: object, imports: object): Promise<Instance>;
}

/** The compiled module of the package, which all instances of a thread share. */
const compiledModules: Promise<object>[] = [];

/** WebAssembly with instances whose memory stays below a bound. */
function boundedAssembly(bytesMax: number) {
  const global: Assembly = Reflect.get(globalThis, 'WebAssembly');
  const bound: { memory: LinearMemory | undefined; assembly: object } = { memory: undefined, assembly: {} };
  const instantiate = async (source: Uint8Array, imports: object) => {
    compiledModules[0] ??= global.compile(source);
    const instance = await global.instantiate(await compiledModules[0], imports);
    bound.memory = Object.values(instance.exports).find((each) => each instanceof global.Memory);
    if (bound.memory !== undefined) limitMemory(bound.memory, bytesMax);
    return { instance };
  };
  bound.assembly = Object.create(global, { instantiate: { value: instantiate } });
  return bound;
}

const pageBytes = 65_536;

function limitMemory(memory: LinearMemory, bytesMax: number): void {
  const grow = memory.grow.bind(memory);
  Object.defineProperty(memory, 'grow', {
    value: (pages: number) => {
      if (memory.buffer.byteLength + pages * pageBytes > bytesMax) throw new RangeError('the memory bound is reached');
      return grow(pages);
    },
  });
}
