// A conversation in the terminal: lines, blocks, commands, Ctrl-C, and a context that fills up.
import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { type Answering, ChatSession, ContextFull } from '../../../src/cli/terminal/chat-session.ts';
import type { ChatMessage } from '../../../src/text/template/chat-template.ts';

type Answer = Answering['answer'];

function session(answer: Answer, { isTyped = false, system }: { isTyped?: boolean; system?: string } = {}) {
  const input = new PassThrough();
  const output = new PassThrough();
  let printed = '';
  output.on('data', (chunk: Buffer) => {
    printed += chunk.toString();
  });
  const asked: string[][] = [];
  const answering: Answering = {
    answer: (messages, signal, onText) => {
      asked.push(messages.map(({ role, content }) => `${role}: ${String(content)}`));
      return answer(messages, signal, onText);
    },
  };
  const ended = new ChatSession(answering, { input, output, isTyped }, system).run();
  return { input, asked, ended, printed: () => printed };
}

const echoes: Answer = async (messages, _signal, onText) => {
  const text = `<${String(messages.at(-1)?.content)}>`;
  onText(text);
  return text;
};

it('answers each line, with the history, and ends with the input', async () => {
  const { input, asked, ended, printed } = session(echoes, { system: 'Be brief.' });
  input.end('one\n\n  two \n');
  await ended;
  expect(asked).toEqual([
    ['system: Be brief.', 'user: one'],
    ['system: Be brief.', 'user: one', 'assistant: <one>', 'user: two'],
  ]);
  expect(printed()).toContain('<two>');
});

it('takes a block between fences as one message', async () => {
  const { input, asked, ended } = session(echoes);
  input.end('"""first\n  second\n\n/exit\nlast"""\nafter\n');
  await ended;
  expect(asked.map((messages) => messages.at(-1))).toEqual(['user: first\n  second\n\n/exit\nlast', 'user: after']);
});

it('takes pasted lines as one message, with the last line that Enter ends', async () => {
  const { input, asked, ended } = session(echoes, { isTyped: true });
  input.write('def f():\n    return 1\nend');
  await new Promise((resolve) => setTimeout(resolve, 100));
  input.write('\n');
  while (asked.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  input.end('\u0004');
  await ended;
  expect(asked[0]).toEqual(['user: def f():\n    return 1\nend']);
});

it('answers /help and unknown commands, starts anew at /reset, and ends at /exit', async () => {
  const { input, asked, ended, printed } = session(echoes);
  input.write('/help\n/wings\none\n/reset\n/etc/hosts holds what?\n/exit\nnever\n');
  await ended;
  expect(printed()).toContain('/reset        starts a new conversation');
  expect(printed()).toContain("Unknown command '/wings'; /help lists the commands");
  expect(asked).toEqual([['user: one'], ['user: /etc/hosts holds what?']]);
});

it('stops an answer at Ctrl-C, keeps what was said, and prompts again', async () => {
  const stops: Answer = (messages, signal, onText) => {
    if (messages.length > 1) return echoes(messages, signal, onText);
    onText('half');
    return new Promise((resolve) => {
      signal.addEventListener('abort', () => resolve('half'));
      input.write('\u0003');
    });
  };
  const { input, asked, ended, printed } = session(stops, { isTyped: true });
  input.write('one\n');
  while (!printed().includes('(stopped)')) await new Promise((resolve) => setTimeout(resolve, 5));
  input.write('two\n');
  while (asked.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  input.end('\u0004');
  await ended;
  expect(asked[1]).toEqual(['user: one', 'assistant: half', 'user: two']);
});

it('leaves out the oldest turns of a full context and says so, but not the system message', async () => {
  const holds =
    (characters: number): Answer =>
    async (messages: readonly ChatMessage[], signal, onText) => {
      const size = messages.reduce((sum, { content }) => sum + String(content).length, 0);
      if (size > characters) throw new ContextFull(`Cannot generate: ${size} of ${characters}`);
      return echoes(messages, signal, onText);
    };
  const { input, asked, ended, printed } = session(holds(16), { system: 'sys' });
  input.end(`aaa\nbbb\n${'c'.repeat(30)}\nddd\n`);
  await ended;
  expect(asked[1]).toEqual(['system: sys', 'user: aaa', 'assistant: <aaa>', 'user: bbb']);
  expect(printed()).toContain('(the context is full: the oldest turns are left out)');
  expect(printed()).toContain('Cannot generate: 33 of 16');
  expect(asked.at(-1)).toEqual(['system: sys', 'user: ddd']);
});
