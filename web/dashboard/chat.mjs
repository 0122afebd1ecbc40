// A chat with the served model that shows the path of its own last request.
import { element } from '../drawing/format.mjs';
import { Conversation } from './conversation.mjs';
import { showRequest } from './requests.mjs';
import { authorised } from './source.mjs';

export class Chat {
  title = 'Chat';
  #log = element('div', { className: 'chat-log', id: 'chat-log' });
  #text = element('textarea', { rows: 2, id: 'chat-text' });
  #send = element('button', { type: 'submit', textContent: 'Send' });
  #models = element('select', { className: 'plain', id: 'chat-model' });
  #path = element('div', { className: 'card', id: 'chat-path', hidden: true });
  #conversation = new Conversation();
  #request;
  #stopping;

  constructor(place) {
    this.#text.setAttribute('aria-label', 'message');
    this.#models.setAttribute('aria-label', 'model');
    const clear = element('button', { type: 'button', textContent: 'New chat', onclick: () => this.#clear() });
    const form = element('form', { className: 'row' }, this.#text, this.#send);
    form.onsubmit = (event) => {
      event.preventDefault();
      if (this.#stopping !== undefined) this.#stopping.abort();
      else if (this.#text.value.trim() !== '') void this.#ask(this.#text.value.trim());
    };
    this.#text.onkeydown = (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    };
    const head = element(
      'div',
      { className: 'head' },
      element('h2', {}, 'Chat'),
      element('span', { className: 'row' }, this.#models, clear),
    );
    place.append(element('div', { className: 'card' }, head, this.#log, form), this.#path);
  }

  draw(state) {
    const { models } = state.frame;
    if (models.join() !== [...this.#models.options].map(({ value }) => value).join())
      this.#models.replaceChildren(...models.map((model) => element('option', { value: model, textContent: model })));
    const row = this.#request === undefined ? undefined : state.requests.find(({ id }) => id === this.#request);
    this.#path.hidden = row === undefined;
    if (row !== undefined) showRequest(this.#path, row, state);
  }

  #clear() {
    this.#conversation = new Conversation();
    this.#log.replaceChildren();
  }

  #say(role, text) {
    const line = element('div', { className: `said ${role}` }, text);
    this.#log.append(line);
    this.#log.scrollTop = this.#log.scrollHeight;
    return line;
  }

  async #ask(text) {
    this.#text.value = '';
    const conversation = this.#conversation;
    const messages = conversation.ask(text);
    this.#say('user', text);
    const line = this.#say('assistant', '');
    this.#stopping = new AbortController();
    this.#send.textContent = 'Stop';
    try {
      await this.#stream(messages, ({ choices: [choice] = [] }) => {
        const delta = choice?.delta ?? {};
        conversation.receive(delta);
        line.append(delta.reasoning_content ?? '', delta.content ?? '');
      });
    } catch (error) {
      if (error.name !== 'AbortError') line.append(element('span', { className: 'over' }, error.message));
    }
    conversation.end();
    this.#stopping = undefined;
    this.#send.textContent = 'Send';
  }

  async #stream(messages, receive) {
    const body = JSON.stringify({
      model: this.#models.value,
      messages,
      stream: true,
    });
    const headers = { 'content-type': 'application/json' };
    const response = await authorised('/v1/chat/completions', {
      method: 'POST',
      headers,
      body,
      signal: this.#stopping.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split('\n\n');
      rest = events.pop();
      for (const event of events) this.#receive(event, receive);
      this.#log.scrollTop = this.#log.scrollHeight;
    }
  }

  #receive(event, receive) {
    const data = event.startsWith('data: ') ? event.slice(6) : '[DONE]';
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error !== undefined) throw new Error(chunk.error.message);
    // Traces name requests by the id of the HTTP request and the number of the choice.
    this.#request = `${chunk.id.replace(/^chatcmpl-/, 'req-')}-0`;
    receive(chunk);
  }
}
