// The formats of a model's output: derived from its chat template once, and checked against the template's own texts.

import type { ChatTemplate } from '../template/chat-template.ts';
import type { Tokenizer } from '../tokenizer.ts';
import { type CallFormat, markerOf, type ReasoningFormat, type TemplateStyle } from './call-format.ts';
import { deriveCalls } from './derive-calls.ts';
import { deriveReasoning } from './derive-reasoning.ts';
import { OutputParser } from './output-parser.ts';
import { Probe, type ProbeCall, type ProbeTokens, probeKeys, probeNames, probeQuestion, probeTools } from './probe.ts';

/** The call format of a model, or the reason why it has none. */
export type Calls = { readonly format: CallFormat; readonly style: TemplateStyle } | { readonly problem: string };

export interface TemplateOwner extends ProbeTokens {
  readonly chatTemplate: ChatTemplate;
  readonly tokenizer: Pick<Tokenizer, 'encode'>;
}

/** Both are derived at their first use. */
export class OutputFormats {
  readonly #owner: TemplateOwner;
  readonly #probe: Probe;
  #calls: Calls | undefined;
  #reasoning: { readonly format: ReasoningFormat | undefined } | undefined;

  private constructor(owner: TemplateOwner) {
    this.#owner = owner;
    this.#probe = new Probe(owner.chatTemplate, { bosToken: owner.bosToken, eosToken: owner.eosToken });
  }

  static readonly #known = new WeakMap<ChatTemplate, OutputFormats>();

  /** The formats of a model, which are kept with its template. */
  static of(owner: TemplateOwner): OutputFormats {
    const known = OutputFormats.#known.get(owner.chatTemplate);
    if (known !== undefined) return known;
    const formats = new OutputFormats(owner);
    OutputFormats.#known.set(owner.chatTemplate, formats);
    return formats;
  }

  get reasoning(): ReasoningFormat | undefined {
    this.#reasoning ??= { format: deriveReasoning(this.#probe) };
    return this.#reasoning.format;
  }

  get calls(): Calls {
    this.#calls ??= this.#derive();
    return this.#calls;
  }

  #derive(): Calls {
    if (!/tool/.test(this.#probe.source)) return { problem: 'it has no tools' };
    if (this.#showsTools()) {
      const calls = deriveCalls(this.#probe);
      if ('problem' in calls) return calls;
      if (/^[a-z0-9]/i.test(markerOf(calls.format))) return { problem: 'its tool calls begin without a marker' };
      return this.#readsItself(calls.format, calls.style)
        ? calls
        : { problem: 'the format of its tool calls is not regular enough to be read' };
    }
    return this.#fromVocabulary() ?? { problem: 'it does not write the tools of a request' };
  }

  #showsTools(): boolean {
    return this.#probe.prompt(true)?.includes('zqdescription') === true;
  }

  /** True if the calls that the template writes are read as they were. */
  #readsItself(format: CallFormat, style: TemplateStyle): boolean {
    // Templates write texts into Python calls without quotes or escapes, which models do not.
    const own = format.shape.kind === 'python' ? checks.filter((calls) => calls !== oddTexts) : checks;
    return own.every((calls) => {
      if (calls.length > 1 && !format.isParallel) return true;
      const text = this.#probe.calls(calls, style);
      const from = text?.lastIndexOf(probeQuestion) ?? -1;
      if (text === undefined || from < 0) return false;
      return isSame(readCalls(text.slice(from), format), calls);
    });
  }

  /**
   * The template writes tools between markers that the vocabulary has for calls too, as Phi-4-mini's:
   * `<|tool|>` for tools and `<|tool_call|>` for calls.
   */
  #fromVocabulary(): Calls | undefined {
    const tools = JSON.stringify(probeTools);
    const messages = [
      { role: 'system', content: 'zqsystem', tools },
      { role: 'user', content: probeQuestion },
    ];
    const text = this.#probe.render(messages, false, true);
    const at = text?.indexOf(tools) ?? -1;
    if (text === undefined || at < 0) return undefined;
    const [open, close] = [
      /<[^<>]*>$/.exec(text.slice(0, at))?.[0],
      /^<[^<>]*>/.exec(text.slice(at + tools.length))?.[0],
    ];
    if (open === undefined || close === undefined) return undefined;
    const [callOpen, callClose] = [open, close].map((marker) => marker.replace('tool', 'tool_call'));
    if (callOpen === undefined || callClose === undefined || callOpen === open) return undefined;
    if (![callOpen, callClose].every((marker) => this.#isToken(marker))) return undefined;
    return {
      format: {
        sectionOpen: callOpen,
        callOpen: '',
        callClose: '',
        separator: ', ',
        sectionClose: callClose,
        shape: {
          kind: 'json',
          isList: true,
          nameKey: 'name',
          argumentsKey: 'arguments',
          open: '{"name": "',
          middle: '", "arguments": ',
          end: '}',
          idAt: undefined,
        },
        isParallel: true,
      },
      style: {
        tools: 'system message',
        argumentsAs: 'object',
        emptyContent: '',
        ids: 'any',
        callsInContent: true,
      },
    };
  }

  #isToken(text: string): boolean {
    return this.#owner.tokenizer.encode(text, { addSpecial: false }).length === 1;
  }
}

const [nameA, nameB] = probeNames;
const [keyA, keyB] = probeKeys;

const oddTexts: readonly ProbeCall[] = [{ name: nameA, arguments: { [keyA]: 'a "b" {c}\n<d>é😀', [keyB]: 'y' } }];

/** Calls that every derived format must read. */
const checks: readonly (readonly ProbeCall[])[] = [
  [{ name: nameA, arguments: { [keyA]: 'x' } }],
  oddTexts,
  [{ name: nameA, arguments: { [keyA]: 17, [keyB]: { z: [1, true] } } }],
  [{ name: nameA, arguments: {} }],
  [
    { name: nameA, arguments: { [keyA]: 'x' } },
    { name: nameB, arguments: { [keyB]: 'y', [keyA]: 'z' } },
  ],
];

function readCalls(text: string, format: CallFormat): ProbeCall[] {
  const tools = probeNames.map((name) => ({ name }));
  const at = firstCall(text, format);
  const parser = new OutputParser({
    reasoning: undefined,
    hasReasoningBegun: false,
    calls: { format, tools },
    callsMax: Number.POSITIVE_INFINITY,
  });
  const calls: { name: string; text: string }[] = [];
  for (const { calls: pieces } of [parser.push(text.slice(at)), parser.finish()])
    for (const piece of pieces) {
      if (piece.name !== undefined) calls.push({ name: piece.name, text: '' });
      const last = calls.at(-1);
      if (last !== undefined) last.text += piece.arguments;
    }
  return calls.map(({ name, text: json }) => ({ name, arguments: parsed(json) }));
}

/** Where calls without a marker begin: only an answer that begins with one has calls. */
function firstCall(text: string, format: CallFormat): number {
  const isMarked = (format.sectionOpen + format.callOpen).trim() !== '';
  return isMarked ? 0 : Math.max(text.indexOf('{'), 0);
}

function parsed(json: string): Record<string, unknown> {
  try {
    return JSON.parse(json) as Record<string, unknown>;
  } catch {
    return { malformed: json };
  }
}

/** Equal but for the order of members. Texts without a schema may be read as the JSON that they are. */
function isSame(a: readonly ProbeCall[], b: readonly ProbeCall[]): boolean {
  const sorted = ({ name, arguments: args }: ProbeCall) => [name, Object.entries(args).sort()];
  return JSON.stringify(a.map(sorted)) === JSON.stringify(b.map(sorted));
}
