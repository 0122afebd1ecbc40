// The prefixes of a prompt that `cache_control` marks: where they end in its tokens, and how long they are kept.
import { Detokenizer } from '../../text/detokenizer.ts';
import type { Tokenizer } from '../../text/tokenizer.ts';
import type { Block, MessagesBody } from './message-schema.ts';

/** A prefix of the prompt, kept for a time. */
interface CachedPrefix {
  readonly tokens: number;
  readonly ttlS: number;
}

/** Where a mark is: behind tools and system prompt, or behind a text of the messages. */
type Place = { readonly kind: 'messages' } | { readonly kind: 'after'; readonly text: string };

interface Mark {
  readonly place: Place;
  readonly ttlS: number;
}

const ttlSeconds = { '5m': 300, '1h': 3600 } as const;

type Control = MessagesBody['cache_control'];

/** The longest marked prefix of each time: it has the blocks of the shorter ones. */
export function cachedPrefixes(body: MessagesBody, prompt: Int32Array, tokenizer: Tokenizer): CachedPrefix[] {
  const marks = lastMarks(body);
  if (marks.length === 0) return [];
  const { text, ends } = textOf(prompt, tokenizer);
  return marks.flatMap(({ place, ttlS }) => {
    const end = endOf(place, body, text);
    const tokens = ends.filter((tokenEnd) => tokenEnd <= end).length;
    return tokens > 0 ? [{ tokens, ttlS }] : [];
  });
}

/** The last mark of each time. */
function lastMarks({ tools = [], system = '', messages, cache_control: whole }: MessagesBody): Mark[] {
  const last = new Map<number, Mark>();
  const add = (control: Control, place: Place): void => {
    if (control === undefined || control === null) return;
    const ttlS = ttlSeconds[control.ttl ?? '5m'];
    last.set(ttlS, { place, ttlS });
  };
  for (const { cache_control } of tools) add(cache_control, { kind: 'messages' });
  if (typeof system !== 'string') for (const { cache_control } of system) add(cache_control, { kind: 'messages' });
  let text = '';
  for (const { content } of messages) {
    for (const block of typeof content === 'string' ? [content] : content) {
      text = typeof block === 'string' ? block : (visibleText(block) ?? text);
      if (typeof block !== 'string' && 'cache_control' in block) add(block.cache_control, { kind: 'after', text });
    }
  }
  add(whole, { kind: 'after', text });
  return [...last.values()];
}

/** The text of the block in the prompt; undefined if it is unknown. */
function visibleText(block: Block): string | undefined {
  if (block.type === 'text') return block.text;
  if (block.type !== 'tool_result') return undefined;
  return typeof block.content === 'string' ? block.content : block.content?.at(-1)?.text;
}

/** Templates trim texts. The first message follows all tools and the system prompt. */
function endOf(place: Place, { messages: [first] }: MessagesBody, text: string): number {
  if (place.kind === 'after') {
    const found = place.text.trim();
    const at = text.lastIndexOf(found);
    return at < 0 ? 0 : at + found.length;
  }
  const content = typeof first?.content === 'string' ? first.content : visibleText(first?.content[0] ?? noBlock);
  const beginning = content?.trim() ?? '';
  return beginning === '' ? 0 : Math.max(0, text.indexOf(beginning));
}

const noBlock: Block = { type: 'text', text: '' };

/** The text of a prompt, and where each token ends in it. */
function textOf(prompt: Int32Array, tokenizer: Tokenizer): { text: string; ends: number[] } {
  const detokenizer = new Detokenizer(tokenizer, { skipSpecial: false });
  let text = '';
  const ends = Array.from(prompt, (id) => {
    text += detokenizer.push(id);
    return text.length;
  });
  return { text, ends };
}
