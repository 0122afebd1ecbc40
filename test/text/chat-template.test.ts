// Chat templates: rendering, roles, content parts and errors.

import { describe, expect, test } from 'vitest';
import { ChatTemplate, renderChat } from '../../src/text/template/chat-template.ts';
import { formatTime } from '../../src/text/template/strftime.ts';
import { hasShared, openText, sharedModels } from './models.ts';

const list = new ChatTemplate(
  '{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}',
);

describe('chat templates', () => {
  test('roles, generation prompt, content parts', () => {
    const messages = [
      { role: 'developer', content: 'Be brief.' },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'One' },
          { type: 'text', text: 'two' },
        ] as const,
      },
      { role: 'assistant', content: null },
    ];
    expect(list.render({ messages })).toBe('[system]Be brief.[user]One\ntwo[assistant][assistant]');
    expect(list.render({ messages: [], addGenerationPrompt: false })).toBe('');
  });

  test('a template with a developer role keeps that role', () => {
    const template = new ChatTemplate("{% for m in messages %}{{ 'D' if m.role == 'developer' else 'S' }}{% endfor %}");
    expect(template.render({ messages: [{ role: 'developer', content: '' }] })).toBe('D');
  });

  test('variables, special tokens and an empty list of tools', () => {
    const template = new ChatTemplate(
      '{{ bos_token }}{{ eos_token }}{{ enable_thinking }}{% if tools is none %}no tools{% endif %}',
    );
    const variables = { enable_thinking: false };
    expect(template.render({ messages: [], bosToken: '<s>', eosToken: '</s>', variables })).toBe(
      '<s></s>Falseno tools',
    );
  });

  test('constants and range', () => {
    const template = new ChatTemplate(
      '{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}{{ none is none }}{{ True and not False }}',
    );
    expect(template.render({ messages: [] })).toBe('01253TrueTrue');
  });

  test('strftime_now formats the given time', () => {
    const template = new ChatTemplate(
      "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}none{% endif %}",
    );
    expect(template.render({ messages: [], nowMs: 1_709_208_000_000 })).toBe('29 Feb 2024');
    expect(template.render({ messages: [] })).toBe('none');
  });

  test('errors are messages for the client', () => {
    const messages = [{ role: 'user', content: 'x' }];
    const refuses = new ChatTemplate("{{ raise_exception('roles must alternate') }}");
    expect(() => refuses.render({ messages })).toThrow(
      "Cannot render chat: the model's chat template refuses it: roles must alternate",
    );
    const broken = new ChatTemplate('{% if %}');
    expect(broken.problem).toMatch(/does not parse/);
    expect(() => broken.render({ messages })).toThrow(
      /^Cannot render chat: the model's chat template does not parse: /,
    );
    expect(() => new ChatTemplate('{{ messages | nosuchfilter }}').render({ messages })).toThrow(
      /^Cannot render chat: the model's chat template failed: /,
    );
    expect(() => renderChat(undefined, { messages })).toThrow(/^Cannot render chat: model has no chat template: /);
    const image = [{ role: 'user', content: [JSON.parse('{"type":"image_url"}')] }];
    expect(() => list.render({ messages: image })).toThrow(
      "Cannot render chat: messages[0].content[0] is not text: type 'image_url'",
    );
  });

  test('lists have append, as in other engines than jinja2', () => {
    const template = new ChatTemplate(
      '{% set a = [] %}{% for m in messages %}{% do a.append(m.role) %}{% endfor %}{{ a }}',
    );
    expect(template.render({ messages: [{ role: 'user', content: 'x' }] })).toBe("['user']");
  });

  test.skipIf(!hasShared)('SmolLM2 (needs ../shared/models)', () => {
    const { chatTemplate } = openText(`${sharedModels}/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf`);
    const messages = [{ role: 'user', content: 'What is the capital of France?' }];
    expect(renderChat(chatTemplate, { messages })).toBe(
      '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' +
        '<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n',
    );
  });
});

describe('strftime', () => {
  test('matches the platform calendar over six centuries', () => {
    for (let timeMs = -11_000_000_000_000; timeMs < 9_000_000_000_000; timeMs += 86_400_000 * 97 + 12_345_678) {
      const iso = new Date(timeMs).toISOString();
      expect(formatTime(timeMs, '%Y-%m-%dT%H:%M:%S')).toBe(iso.slice(0, 19));
      expect(formatTime(timeMs, '%w')).toBe(String(new Date(timeMs).getUTCDay()));
    }
  });

  test('names, unpadded numbers, unknown directives', () => {
    const timeMs = Date.UTC(2026, 2, 5, 0, 7, 9);
    expect(formatTime(timeMs, '%A %a %B %b %e %-d %-m %j %I %p %-M %y %% %F %T %Q')).toBe(
      'Thursday Thu March Mar  5 5 3 064 12 AM 7 26 % 2026-03-05 00:07:09 %Q',
    );
  });
});
