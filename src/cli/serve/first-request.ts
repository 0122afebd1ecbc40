// The request that `serve` prints at its start, as a line for a POSIX shell.

const shellQuoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

/** A model that may not be loaded: whether it has a tokenizer and a template is what matters. */
export interface FirstModel {
  readonly id: string;
  /** Undefined: it has none. */
  readonly tokenizer: unknown;
  readonly chatTemplate: unknown;
  /** In place of both. */
  readonly engineText?: unknown;
  readonly generates?: boolean;
  readonly ranks?: boolean;
}

/** @param needsKey the shell's variable KVASIR_API_KEY then has the key, which must not appear in logs */
export function firstRequest(model: FirstModel, url: string, needsKey: boolean): string {
  const { tokenizer = model.engineText, chatTemplate = model.engineText } = model;
  const [path, fields] =
    model.ranks === true
      ? ['rerank', { query: 'fox', documents: ['A story about a fox.', 'A lantern.'] }]
      : model.generates === false
        ? ['embeddings', { input: tokenizer === undefined ? [1, 2, 3] : 'A story about a fox and a lantern.' }]
        : chatTemplate === undefined
          ? ['completions', { prompt: tokenizer === undefined ? [1, 2, 3] : 'Once upon a time' }]
          : [
              'chat/completions',
              { messages: [{ role: 'user', content: 'Tell me a story about a fox and a lantern.' }] },
            ];
  const variable = '{KVASIR_API_KEY:?set it to a key of this server}';
  const key = needsKey ? ` -H "authorization: Bearer $${variable}"` : '';
  const body = shellQuoted(JSON.stringify({ model: model.id, ...fields }));
  return `curl ${shellQuoted(`${url}/v1/${path}`)}${key} -H 'content-type: application/json' -d ${body}`;
}
