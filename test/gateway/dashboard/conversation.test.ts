// The messages that the chat of the dashboard sends.
import { expect, it } from 'vitest';
import { Conversation } from '../../../web/dashboard/conversation.mjs';

it('keeps answers with their reasoning apart, and drops requests that failed before an answer', () => {
  const conversation = new Conversation();
  expect(conversation.ask('one')).toEqual([{ role: 'user', content: 'one' }]);
  for (const delta of [{ reasoning_content: 'hm' }, { content: 'first' }, { content: ' answer' }, {}])
    conversation.receive(delta);
  conversation.end();
  conversation.ask('refused');
  conversation.end();
  expect(conversation.ask('two')).toEqual([
    { role: 'user', content: 'one' },
    { role: 'assistant', content: 'first answer', reasoning_content: 'hm' },
    { role: 'user', content: 'two' },
  ]);
  // The client stopped the answer, or the server ended it with an error.
  conversation.receive({ content: 'cut' });
  conversation.end();
  expect(conversation.messages.at(-1)).toEqual({ role: 'assistant', content: 'cut' });
});
