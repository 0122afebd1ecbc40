// `kvasir chat --url`: answers of a running server, and the keys that end `kvasir top`.
import { EventEmitter } from 'node:events';
import { afterEach, expect, it } from 'vitest';
import { quitAtKey } from '../../../src/cli/commands/top.ts';
import { openRemoteChat } from '../../../src/cli/serve/model/remote-chat.ts';
import { ContextFull } from '../../../src/cli/terminal/chat-session.ts';
import { type Gateway, listen } from '../../../src/gateway/http/server.ts';
import { ApiKeys } from '../../../src/gateway/keys/api-keys.ts';
import { bytesOf } from '../../gateway/openai/byte-tokenizer.ts';
import { accepted, type Script, ScriptedPort, started, tokens } from '../../gateway/scripted-port.ts';
import { answering, gatewayOptions } from '../../gateway/world.ts';

const opened: Gateway[] = [];
afterEach(() => Promise.all(opened.splice(0).map((each) => each.drain({ waitMs: 0, timeoutMs: 0 }))));

async function serve(script: Script) {
  const port = new ScriptedPort(script);
  const keys = new ApiKeys({ users: ['known'], admins: [] });
  const gateway = await listen(gatewayOptions(port, { keys }), '127.0.0.1', 0);
  opened.push(gateway);
  return { port, server: { url: `http://127.0.0.1:${gateway.port}/`, apiKey: 'known' } };
}

const settings = { maxTokens: 40, temperature: 0.5, topP: undefined, seed: 7 };
const hi = [{ role: 'user', content: 'hi' }];
const open = new AbortController().signal;

it('streams the answer of the first model, sampled with the settings', async () => {
  const { port, server } = await serve(answering('Hello!', 'stop'));
  const chat = await openRemoteChat(server, settings);
  const texts: string[] = [];
  expect(await chat.answer(hi, open, (text) => texts.push(text))).toBe('Hello!');
  expect([chat.model, texts.join('')]).toEqual(['bytes', 'Hello!']);
  expect(port.requests[0]).toMatchObject({ maxTokens: 40, sampling: { temperature: 0.5, topP: 1 } });
});

it('stops the answer on the server when it is cancelled, and returns the text so far', async () => {
  const { port, server } = await serve(() => [
    accepted,
    started(0),
    ...Array.from({ length: 20_000 }, () => tokens(bytesOf('x'))),
  ]);
  const { answer } = await openRemoteChat(server, settings);
  const stop = new AbortController();
  const text = await answer(hi, stop.signal, () => stop.abort());
  expect(text).toMatch(/^x*$/);
  while (port.cancelled.length === 0) await new Promise((resolve) => setImmediate(resolve));
});

it('names a full context, an unknown model, a wrong key and a server that does not answer', async () => {
  const { server } = await serve(answering('Hello!'));
  const { answer } = await openRemoteChat(server, settings);
  const long = [{ role: 'user', content: 'x'.repeat(200) }];
  await expect(answer(long, open, () => {})).rejects.toBeInstanceOf(ContextFull);
  await expect(openRemoteChat(server, settings, 'other')).rejects.toThrow(
    `Cannot chat with model 'other': ${server.url} serves bytes`,
  );
  await expect(openRemoteChat({ ...server, apiKey: 'wrong' }, settings)).rejects.toThrow('answered 401');
  await expect(openRemoteChat({ ...server, url: 'http://127.0.0.1:1' }, settings)).rejects.toThrow('Cannot reach');
});

/** A terminal whose keys a test presses. */
class Keyboard extends EventEmitter {
  readonly isTTY: boolean;
  isRaw = false;
  isPaused = false;

  constructor(isTTY: boolean) {
    super();
    this.isTTY = isTTY;
  }

  setRawMode(isRaw: boolean): this {
    this.isRaw = isRaw;
    return this;
  }

  pause(): this {
    this.isPaused = true;
    return this;
  }
}

type Keys = Parameters<typeof quitAtKey>[0];

it.each(['q', 'Q', '\u0003', '\u0004'])('top ends at the key %j', (key) => {
  const keyboard = new Keyboard(true);
  let quits = 0;
  const restore = quitAtKey(keyboard as unknown as Keys, () => quits++);
  keyboard.emit('data', Buffer.from('x'));
  expect([quits, keyboard.isRaw]).toEqual([0, true]);
  keyboard.emit('data', Buffer.from(key));
  expect(quits).toBe(1);
  restore();
  expect([keyboard.isRaw, keyboard.isPaused, keyboard.listenerCount('data')]).toEqual([false, true, 0]);
});

it('top leaves an input that is no terminal alone', () => {
  const keyboard = new Keyboard(false);
  quitAtKey(keyboard as unknown as Keys, () => {})();
  expect([keyboard.isPaused, keyboard.listenerCount('data')]).toEqual([false, 0]);
});
