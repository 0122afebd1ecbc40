// Seeded recall tasks in the manner of RULER: facts hidden in filler text, with questions at the end.
import { Prng } from '../../util/prng.ts';

export const recallTasks = [
  'single',
  'multi-key',
  'multi-value',
  'variables',
  'common-words',
  'frequent-words',
  'late-question',
] as const;
export type RecallTask = (typeof recallTasks)[number];

/** Tasks with a fact at a chosen depth; the others count words of the whole text. */
export const depthTasks: ReadonlySet<RecallTask> = new Set([
  'single',
  'multi-key',
  'multi-value',
  'variables',
  'late-question',
]);

export interface RecallCase {
  readonly task: RecallTask;
  /** Where the fact is, in percent of the text; undefined for tasks without depth. */
  readonly depth: number | undefined;
  /** The text, the question and the beginning of its answer: keys are selected at its end. */
  readonly prompt: string;
  /** What follows: the lead is given, then the answer is predicted, then the next part follows. */
  readonly parts: readonly AnswerPart[];
}

export interface AnswerPart {
  readonly lead: string;
  readonly answer: string;
  /** The answer is right if it is more likely than each of these. Empty: if it is the greedy continuation. */
  readonly others: readonly string[];
}

export interface RecallRequest {
  readonly task: RecallTask;
  readonly depth: number | undefined;
  /** Prompts have about this number of tokens, and never more. */
  readonly tokens: number;
  /** Cases of one seed differ by their index. */
  readonly seed: number;
  readonly index: number;
  readonly countTokens: (text: string) => number;
}

const names = words(`fox rabbit bear mouse owl hedgehog squirrel badger otter frog duck kitten puppy pony lamb goat hen
  goose robin crow turtle snail beaver mole deer wolf penguin seal monkey elephant lion tiger panda zebra camel parrot
  swan crab whale dolphin dragon bee ant beetle butterfly`);
const things =
  words(`lantern kite drum ball hat scarf boat book map bell box basket coin ring mirror candle clock ladder
  rope bucket cup spoon pillow blanket button ribbon feather shell stone whistle flute umbrella wagon sled bicycle doll
  marble crown necklace painting pencil letter bottle jar broom hammer compass violin balloon flag trumpet puzzle`);
const adjectives =
  words(`shiny old tiny big beautiful broken wooden heavy strange soft round pretty dusty special simple
  bright little huge plain smooth rusty lovely fancy secret`);
const verbs = words('found carried painted lost borrowed hid cleaned repaired sold dropped noticed wanted remembered');
const places = words(
  'forest park beach market river meadow hill library garden farm mill harbor castle cave pond school',
);

/** Other facts beside the one that is asked for. */
const otherFacts = 1;

/** Wrong words beside the right one. */
const otherWords = 3;

/** The first keys of any text attract attention: no fact is there. */
const opening = 'Read this text and remember the codes in it.';

export function recallCase(request: RecallRequest): RecallCase {
  const stream = recallTasks.indexOf(request.task) * 4096 + request.index * 128 + (request.depth ?? 101);
  const random = new Prng(request.seed, stream);
  switch (request.task) {
    case 'single':
      return factCase(request, random, 0);
    case 'multi-key':
      return factCase(request, random, otherFacts);
    case 'multi-value':
      return multiValueCase(request, random);
    case 'variables':
      return variablesCase(request, random);
    case 'common-words':
      return wordsCase(request, random, 'common');
    case 'frequent-words':
      return wordsCase(request, random, 'frequent');
    case 'late-question':
      return lateCase(request, random);
  }
}

function factCase(request: RecallRequest, random: Prng, others: number): RecallCase {
  const [key, ...otherKeys] = sample(random, names, others + 1);
  const value = digits(random);
  const facts = otherKeys.map((other) => fact(other, digits(random)));
  const prompt = hide(request, random, [fact(key, value)], facts, question(key));
  return caseOf(request, prompt, [{ answer: ` ${value}` }]);
}

/** Like multi-key, but the question comes after the selection. */
function lateCase(request: RecallRequest, random: Prng): RecallCase {
  const [key, ...otherKeys] = sample(random, names, otherFacts + 1);
  const value = digits(random);
  const facts = otherKeys.map((other) => fact(other, digits(random)));
  return caseOf(request, hide(request, random, [fact(key, value)], facts, ''), [
    { lead: question(key), answer: ` ${value}` },
  ]);
}

function multiValueCase(request: RecallRequest, random: Prng): RecallCase {
  const [key, place] = [pick(random, names), pick(random, places)];
  const values = [digits(random), digits(random)];
  const facts = [`Remember: the code for ${key} is ${values[0]}.`, `Remember: the number for ${key} is ${values[1]}.`];
  const others = [fact(`the ${place}`, digits(random))];
  const ask = asked(`What are the code and the number for ${key}?`, `The code for ${key} is`);
  return caseOf(request, hide(request, random, facts, others, ask), [
    { answer: ` ${values[0]}` },
    { lead: `. The number for ${key} is`, answer: ` ${values[1]}` },
  ]);
}

/** A chain of assignments: the last variable has the value of the first. */
function variablesCase(request: RecallRequest, random: Prng): RecallCase {
  const value = digits(random);
  const [first, second] = sample(random, names, 2);
  const facts = [fact(first, value), `Remember: the code for ${second} is the code for ${first}.`];
  const lead = `The code for ${second} is the code for ${first}, which is`;
  const prompt = hide(request, random, facts, [], asked(`What is the code for ${second}?`, lead));
  return caseOf(request, prompt, [{ answer: ` ${value}` }]);
}

/** A list in which one word is every other (common), or words occur by their rank to the power of -2 (frequent). */
function wordsCase(request: RecallRequest, random: Prng, kind: 'common' | 'frequent'): RecallCase {
  const vocabulary = shuffled(random, [...names, ...things]);
  const [word] = vocabulary;
  const ask = asked('Which word is the most common in the list?', 'The most common word in the list is');
  const list: string[] = [];
  const text = () =>
    `Here is a list of words: ${shuffled(new Prng(request.seed, request.index), list).join(' ')}.${ask}`;
  for (let i = 0; ; i++) {
    const count = list.length;
    if (kind === 'common') list.push(word, vocabulary[1 + (i % (vocabulary.length - 1))]);
    else for (let rank = 0; rank < 6; rank++) if (i % (rank + 1) ** 2 === 0) list.push(vocabulary[rank]);
    if (request.countTokens(text()) <= request.tokens) continue;
    list.length = count;
    break;
  }
  const others = [...new Set(list)].slice(1, 1 + otherWords).map((other) => ` ${other}`);
  return caseOf(request, text(), [{ answer: ` ${word}`, others }]);
}

function caseOf({ task, depth }: RecallRequest, prompt: string, parts: readonly Partial<AnswerPart>[]): RecallCase {
  return { task, depth, prompt, parts: parts.map((part) => ({ lead: '', answer: '', others: [], ...part })) };
}

function fact(key: string, value: string): string {
  return `Remember: the code for ${key} is ${value}.`;
}

function question(key: string): string {
  return asked(`What is the code for ${key}?`, `The code for ${key} is`);
}

/** A question and the beginning of its answer. */
function asked(text: string, lead: string): string {
  return `\n\nQuestion: ${text}\nAnswer: ${lead}`;
}

/** Filler with the facts from `depth` on, one behind the other, and other facts anywhere. */
function hide(
  { depth = 0, tokens, countTokens }: RecallRequest,
  random: Prng,
  facts: readonly string[],
  others: readonly string[],
  ask: string,
): string {
  const filler: string[] = [];
  let left = tokens - countTokens([opening, ...facts, ...others].join(' ') + ask) - 2;
  for (;;) {
    const next = sentence(random);
    left -= countTokens(` ${next}`);
    if (left < 0) break;
    filler.push(next);
  }
  const placed = filler.map((text, index) => ({ text, at: index + 1 }));
  for (const text of others) placed.push({ text, at: random.uniform() * filler.length });
  for (const [index, text] of facts.entries())
    placed.push({ text, at: (depth / 100) * filler.length + 0.01 * (index + 1) });
  const sentences = placed.sort((a, b) => a.at - b.at).map(({ text }) => text);
  return [opening, ...sentences].join(' ') + ask;
}

/** Filler text of about this number of tokens. */
export function fillerText(seed: number, tokens: number, countTokens: (text: string) => number): string {
  const random = new Prng(seed, 1 << 20);
  const sentences: string[] = [];
  for (let left = tokens; left > 0; ) {
    const next = sentence(random);
    left -= countTokens(` ${next}`);
    sentences.push(next);
  }
  return sentences.join(' ');
}

function sentence(random: Prng): string {
  const [one, other] = [pick(random, names), pick(random, names)];
  const thing = `${pick(random, adjectives)} ${pick(random, things)}`;
  const place = pick(random, places);
  const forms = [
    `The ${one} ${pick(random, verbs)} a ${thing} near the ${place}.`,
    `One day the ${one} went to the ${place} with a ${thing}.`,
    `"I like this ${thing}," said the ${one} to the ${other}.`,
    `The ${one} and the ${other} walked to the ${place} together.`,
    `At the ${place} there was a ${thing}.`,
  ];
  return pick(random, forms);
}

function digits(random: Prng): string {
  return String(random.integer(1000, 9999));
}

function pick<Item>(random: Prng, items: readonly Item[]): Item {
  return items[random.integer(0, items.length - 1)];
}

function sample<Item>(random: Prng, items: readonly Item[], count: number): Item[] {
  return shuffled(random, items).slice(0, count);
}

function shuffled<Item>(random: Prng, items: readonly Item[]): Item[] {
  return items
    .map((item) => ({ item, order: random.uniform() }))
    .sort((a, b) => a.order - b.order)
    .map(({ item }) => item);
}

function words(text: string): readonly string[] {
  return text.split(/\s+/);
}
