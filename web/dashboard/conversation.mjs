// The messages of a chat as the next request sends them: answers without their errors.

export class Conversation {
  /** Of answered requests, and of the running one. */
  messages = [];

  /** Starts a request. @returns its messages */
  ask(text) {
    this.messages.push({ role: 'user', content: text }, { role: 'assistant', content: '' });
    return this.messages.slice(0, -1);
  }

  /** Adds a delta of the answer. @param {{ content?: string | null, reasoning_content?: string | null }} delta */
  receive({ content, reasoning_content: reasoning }) {
    const answer = this.messages.at(-1);
    answer.content += content ?? '';
    if (reasoning) answer.reasoning_content = (answer.reasoning_content ?? '') + reasoning;
  }

  /** The request has ended, was stopped or failed: one without an answer leaves no messages. */
  end() {
    const { content, reasoning_content: reasoning = '' } = this.messages.at(-1);
    if (content === '' && reasoning === '') this.messages.splice(-2);
  }
}
