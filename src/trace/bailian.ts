// Traces of Alibaba's Bailian (Qwen): JSON lines with times in seconds, chats, and ids of blocks of 16 tokens.
import { BlockGroups } from './block-groups.ts';
import { parseObject, type Row, tokensOf } from './mooncake.ts';
import { shown, TraceError, type TraceRequest } from './request.ts';
import { type TimeUnit, unitUs } from './time-unit.ts';

/** Tokens of a block in the file. */
const fileBlockTokens = 16;

/** True for a line with the id of a chat, which lines of Mooncake's format lack. */
export function isBailianLine(text: string): boolean {
  return text.includes('"chat_id"');
}

/** The lines of one file. Arrivals count from its first request. */
export class BailianTrace {
  readonly timeUnit: TimeUnit;
  readonly #blockTokens: number;
  readonly #blocks: BlockGroups;
  /** Session and turn by chat. */
  readonly #chats = new Map<unknown, { readonly session: number; readonly turn: number }>();
  #sessions = 0;
  #startUs: number | undefined;

  /** @param blockTokens of the requests that it returns: a multiple of 16 @param timeUnit stated by the user */
  constructor(blockTokens: number, timeUnit: TimeUnit | undefined, line: number) {
    if (blockTokens % fileBlockTokens !== 0)
      throw new TraceError(line, `hash_ids are of 16 tokens: use --block-tokens 16 or a multiple, not ${blockTokens}`);
    this.timeUnit = timeUnit ?? 's';
    this.#blockTokens = blockTokens;
    this.#blocks = new BlockGroups(blockTokens / fileBlockTokens);
  }

  parse(text: string, line: number, index: number): TraceRequest {
    const row = parseObject(text, line);
    const { timestamp, hash_ids: ids = [] } = row;
    const atUs = typeof timestamp === 'number' ? Math.round(timestamp * unitUs[this.timeUnit]) : -1;
    if (!(atUs >= 0 && atUs <= Number.MAX_SAFE_INTEGER))
      throw new TraceError(line, `timestamp is ${shown(timestamp)}: a number of at least 0 expected`);
    const inputTokens = tokensOf(row, 'input_length', line);
    const outputTokens = tokensOf(row, 'output_length', line);
    this.#startUs ??= atUs;
    return {
      index,
      arrivalUs: atUs - this.#startUs,
      inputTokens,
      outputTokens,
      blocks: this.#blocks.take(idsOf(ids, inputTokens, line), Math.ceil(inputTokens / this.#blockTokens)),
      ...this.#placeOf(row),
    };
  }

  /** A chat continues the session of its parent; without one that precedes it, it begins a session. */
  #placeOf({ chat_id: chat, parent_chat_id: parent }: Row) {
    const before = this.#chats.get(parent);
    const place = before === undefined ? { session: this.#sessions++, turn: 0 } : { ...before, turn: before.turn + 1 };
    this.#chats.set(chat, place);
    return place;
  }
}

function idsOf(value: unknown, inputTokens: number, line: number): readonly number[] {
  if (!Array.isArray(value)) throw new TraceError(line, `hash_ids is ${shown(value)}: a list of block ids expected`);
  const most = Math.ceil(inputTokens / fileBlockTokens);
  if (value.length > most)
    throw new TraceError(
      line,
      `hash_ids has ${value.length} ids: ${most} expected for ${inputTokens} tokens in blocks of ${fileBlockTokens}`,
    );
  const wrong = value.findIndex((id) => !(Number.isSafeInteger(id) && id >= 0));
  if (wrong !== -1)
    throw new TraceError(line, `hash_ids[${wrong}] is ${shown(value[wrong])}: a whole number of at least 0 expected`);
  return value;
}
