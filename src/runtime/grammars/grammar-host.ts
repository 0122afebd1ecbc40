// A grammar thread's side: compiles grammars for one vocabulary, keeps them within bounds, and computes masks of requests.

import type { Grammar } from '../../core/protocol/grammar.ts';
import {
  type FromGrammarThread,
  type GrammarNumber,
  type MaskMemory,
  type MaskRequest,
  maskStates,
  type ToGrammarThread,
} from './grammar-protocol.ts';
import {
  createXgrammar,
  type Xgrammar,
  type XgrammarCompiler,
  type XgrammarInstance,
  type XgrammarMatcher,
} from './xgrammar.ts';

/** What the masks of a model refer to. */
export interface GrammarVocabulary {
  /** Tokens of the logits; those beyond the tokenizer's have no bytes. */
  readonly size: number;
  /** Bytes of a token in the text: none for a special token. */
  bytesOf(id: number): Uint8Array;
  readonly eosIds: readonly number[];
}

export interface GrammarLimits {
  /** Memory of the vocabulary and of all compiled grammars. */
  readonly memoryBytesMax: number;
  /** Memory that grammars without running requests may occupy beside the vocabulary before the oldest is freed. */
  readonly cacheBytesMax: number;
}

export const grammarLimits: GrammarLimits = { memoryBytesMax: 768 << 20, cacheBytesMax: 128 << 20 };

/** Parsing needs no vocabulary. */
const parserBytesMax = 256 << 20;
/** Grammars kept, however small they are. */
const keptMax = 512;

interface Compiled {
  readonly compiled: Parameters<Xgrammar['GrammarMatcher']['createGrammarMatcher']>[0];
  /** Running requests with matchers of it. */
  users: number;
}

interface Matcher {
  readonly grammar: GrammarNumber;
  readonly matcher: XgrammarMatcher;
  accepted: number;
}

/** An instance with the vocabulary, and what lives in its memory. */
interface LoadedVocabulary {
  readonly instance: XgrammarInstance;
  readonly compiler: XgrammarCompiler;
  readonly vocabularyBytes: number;
}

export class GrammarHost {
  readonly #vocabulary: GrammarVocabulary;
  readonly #memory: MaskMemory | undefined;
  readonly #limits: GrammarLimits;
  /** In the order of their last use. */
  readonly #grammars = new Map<GrammarNumber, Compiled>();
  readonly #matchers = new Map<string, Matcher>();
  #parser: XgrammarInstance | undefined;
  #loaded: LoadedVocabulary | undefined;

  /** @param memory undefined: the host only checks whether grammars compile */
  constructor(vocabulary: GrammarVocabulary, memory: MaskMemory | undefined, limits: GrammarLimits = grammarLimits) {
    this.#vocabulary = vocabulary;
    this.#memory = memory;
    this.#limits = limits;
  }

  /** Carries out a message of the owner. Messages are carried out one after another. */
  async receive(message: ToGrammarThread): Promise<FromGrammarThread | undefined> {
    switch (message.kind) {
      case 'compile': {
        const { number, grammar, keeps } = message;
        const fault = await this.#compile(number, grammar, keeps);
        return { kind: 'compiled', number, fault };
      }
      case 'load':
        this.#parser ??= createXgrammar(parserBytesMax);
        await this.#load();
        return { kind: 'loaded' };
      case 'masks':
        await this.#answer(message.batch, message.rows);
        return undefined;
      case 'release':
        this.#release(message.request);
        return undefined;
    }
  }

  async #compile(number: GrammarNumber, grammar: Grammar, keeps: boolean): Promise<string | undefined> {
    if (this.#grammars.has(number)) return undefined;
    const fault = await this.#parse(grammar);
    if (fault !== undefined) return fault;
    const { instance, compiler } = await this.#load();
    this.#makeRoom();
    try {
      const compiled = await compile(instance.api, compiler, grammar);
      if (keeps) this.#grammars.set(number, { compiled, users: 0 });
      else compiled.dispose();
      return undefined;
    } catch (error) {
      const why = reasonOf([...instance.takeMessages(), textOf(error)]);
      const isFull = instance.memoryBytes > this.#limits.memoryBytesMax * 0.8;
      this.#unload();
      return isFull ? `it needs more than ${this.#limits.memoryBytesMax >> 20} MiB of memory` : why;
    }
  }

  /** An error ends the WebAssembly instance in which it occurs. One without the vocabulary is replaced quickly. */
  async #parse(grammar: Grammar): Promise<string | undefined> {
    this.#parser ??= createXgrammar(parserBytesMax);
    const parser = this.#parser;
    parser.takeMessages();
    try {
      (await parse(parser.api, grammar)).dispose();
    } catch (error) {
      this.#parser = undefined;
      return reasonOf([...parser.takeMessages(), textOf(error)]);
    }
    // A warning names a part of the grammar that the masks would not enforce.
    const warnings = parser.takeMessages();
    return warnings.length > 0 ? reasonOf(warnings) : undefined;
  }

  async #load(): Promise<LoadedVocabulary> {
    if (this.#loaded !== undefined) return this.#loaded;
    const instance = createXgrammar(this.#limits.memoryBytesMax);
    const { size, eosIds } = this.#vocabulary;
    const bytes = Array.from({ length: size }, (_, id) => this.#vocabulary.bytesOf(id));
    const info = await instance.api.TokenizerInfo.createTokenizerInfo(bytes, 'raw', false, size, eosIds);
    const compiler = await instance.api.GrammarCompiler.createGrammarCompiler(info, false);
    this.#loaded = { instance, compiler, vocabularyBytes: instance.memoryBytes };
    return this.#loaded;
  }

  /** The instance has failed: everything in its memory is lost. */
  #unload(): void {
    this.#loaded = undefined;
    this.#grammars.clear();
    this.#matchers.clear();
  }

  /** Frees the oldest grammar without requests once the cache is full: its memory serves the next one. */
  #makeRoom(): void {
    const { instance, vocabularyBytes } = this.#loaded ?? {};
    const usedBytes = (instance?.memoryBytes ?? 0) - (vocabularyBytes ?? 0);
    if (usedBytes < this.#limits.cacheBytesMax && this.#grammars.size < keptMax) return;
    for (const [number, { compiled, users }] of this.#grammars) {
      if (users > 0) continue;
      compiled.dispose();
      this.#grammars.delete(number);
      return;
    }
  }

  async #answer(batch: number, rows: readonly MaskRequest[]): Promise<void> {
    const memory = this.#memory;
    if (memory === undefined) return;
    const { control, masks } = memory;
    const words = Math.ceil(this.#vocabulary.size / 32);
    for (const [i, row] of rows.entries()) {
      const matcher = await this.#matcherOf(row);
      if (matcher === undefined) control[1 + i] = maskStates.unknown;
      else if (!advance(matcher, row)) control[1 + i] = maskStates.contradiction;
      else {
        // Nothing follows an end-of-sequence token, which also has no mask.
        if (matcher.matcher.isTerminated()) masks.fill(0, i * words, (i + 1) * words);
        else masks.set(await matcher.matcher.getNextTokenBitmask(), i * words);
        control[1 + i] = maskStates.ready;
      }
    }
    Atomics.store(control, 0, batch);
    Atomics.notify(control, 0);
  }

  /** The matcher of a row, which has accepted the tokens before `from`; undefined: the owner must start anew. */
  async #matcherOf({ request, grammar, from }: MaskRequest): Promise<Matcher | undefined> {
    const known = this.#matchers.get(request);
    if (known !== undefined && from > 0) return known.accepted === from ? known : undefined;
    if (known !== undefined) this.#release(request);
    const entry = this.#grammars.get(grammar);
    if (from > 0 || entry === undefined || this.#loaded === undefined) return undefined;
    const matcher = await this.#loaded.instance.api.GrammarMatcher.createGrammarMatcher(entry.compiled);
    entry.users++;
    this.#grammars.delete(grammar);
    this.#grammars.set(grammar, entry);
    const created = { grammar, matcher, accepted: 0 };
    this.#matchers.set(request, created);
    return created;
  }

  #release(request: string): void {
    const known = this.#matchers.get(request);
    if (known === undefined) return;
    known.matcher.dispose();
    this.#matchers.delete(request);
    const entry = this.#grammars.get(known.grammar);
    if (entry !== undefined) entry.users--;
  }
}

function advance(matcher: Matcher, { tokens }: MaskRequest): boolean {
  for (const token of tokens) {
    if (!matcher.matcher.acceptToken(token)) return false;
    matcher.accepted++;
  }
  return true;
}

/** At most one space or line break between JSON tokens, since some models would write them without end; no members beyond the schema. */
const jsonStyle = [true, -1, undefined, true, 1] as const;

/** The rules of values without a schema, in which XGrammar bounds no white space. */
const anyValueRules = /^basic_(?:array|object)(?:_\d+)* ::= .*$/gm;

/** The grammar of a JSON schema as EBNF. */
async function schemaText({ Grammar }: Xgrammar, schema: string): Promise<string> {
  const grammar = await Grammar.fromJSONSchema(schema, ...jsonStyle);
  const text = grammar.toString();
  grammar.dispose();
  return text.replace(anyValueRules, (rule) => rule.replaceAll('[ \\n\\t]*', '[ \\n\\t]?'));
}

async function parse(api: Xgrammar, { kind, text }: Grammar) {
  if (kind === 'json_schema') return api.Grammar.fromEBNF(await schemaText(api, text));
  return kind === 'ebnf' ? api.Grammar.fromEBNF(text) : api.Grammar.fromStructuralTag(await tagOf(api, kind, text));
}

async function compile(api: Xgrammar, compiler: XgrammarCompiler, { kind, text }: Grammar) {
  if (kind === 'json_schema') return compiler.compileGrammar(await schemaText(api, text));
  return kind === 'ebnf' ? compiler.compileGrammar(text) : compiler.compileStructuralTag(await tagOf(api, kind, text));
}

async function tagOf(api: Xgrammar, kind: 'regex' | 'structural_tag', text: string): Promise<object> {
  if (kind === 'regex') return { type: 'structural_tag', format: { type: 'regex', pattern: text } };
  const tag = (await boundedTag(api, JSON.parse(text))) as object;
  return 'format' in tag ? tag : { type: 'structural_tag', format: tag };
}

/** A part of a structural tag, with the grammars of its schemas in their place. */
async function boundedTag(api: Xgrammar, part: unknown): Promise<unknown> {
  if (typeof part !== 'object' || part === null) return part;
  if (Array.isArray(part)) {
    const parts: unknown[] = [];
    for (const each of part) parts.push(await boundedTag(api, each));
    return parts;
  }
  const members = part as Readonly<Record<string, unknown>>;
  if (members.type === 'json_schema' && Object.keys(members).length === 2 && members.json_schema !== undefined)
    return { type: 'grammar', grammar: await schemaText(api, JSON.stringify(members.json_schema)) };
  const bounded: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(members)) bounded[name] = await boundedTag(api, member);
  return bounded;
}

/** An exception of XGrammar is a number, without a text. */
function textOf(error: unknown): string {
  return typeof error === 'number' ? 'XGrammar refuses it and states no reason' : String(error);
}

/** The first line that an instance wrote, without its place in the sources of XGrammar. */
function reasonOf(messages: readonly string[]): string {
  const first = messages.find((line) => !line.startsWith('Aborted')) ?? 'XGrammar failed';
  const text = first
    .replace(/^.*?\.(cc|h):\d+: /s, '')
    .replace(/^Check failed: .* is false: /, '')
    .split('\n')[0];
  return text.length > 300 ? `${text.slice(0, 300)}...` : text;
}
