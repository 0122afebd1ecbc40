// Derives the markers around a model's reasoning from its chat template.

import type { ReasoningFormat } from './call-format.ts';
import { type Probe, probeAnswer, probeReasoning } from './probe.ts';

const markerCharactersMax = 40;
const reasoningMembers = ['reasoning_content', 'reasoning', 'thinking'];

/** Undefined: the template shows no reasoning. */
export function deriveReasoning(probe: Probe): ReasoningFormat | undefined {
  if (!/think|reason/i.test(probe.source)) return undefined;
  return fromHistory(probe) ?? fromPrompt(probe) ?? fromRemoval(probe);
}

/** The template writes the reasoning of an answer before its content. */
function fromHistory(probe: Probe): ReasoningFormat | undefined {
  for (const member of reasoningMembers) {
    const text = probe.answer({ content: probeAnswer, [member]: probeReasoning }, false);
    const at = text?.indexOf(probeReasoning) ?? -1;
    if (text === undefined || at < 0) continue;
    const from = at + probeReasoning.length;
    const close = text.slice(from, text.indexOf(probeAnswer, from)).trim();
    const open = lastMarker(text.slice(0, at), close);
    if (isMarker(close) && open !== undefined) return { open, close };
  }
  return undefined;
}

/** The template writes empty reasoning where the request turns reasoning off. */
function fromPrompt(probe: Probe): ReasoningFormat | undefined {
  for (const name of ['enable_thinking', 'thinking']) {
    const [off, on] = [false, true].map((value) => probe.prompt(false, { [name]: value }));
    if (off === undefined || on === undefined || off === on) continue;
    const words = off.trimEnd().split(/\s+/);
    const close = words.at(-1) ?? '';
    const open = lastMarker(words.slice(0, -1).join(' '), close);
    if (isMarker(close) && close.includes('/') && open !== undefined) return { open, close };
  }
  return undefined;
}

/** The template removes the reasoning from the content of earlier answers. */
function fromRemoval(probe: Probe): ReasoningFormat | undefined {
  for (const [, close = ''] of probe.source.matchAll(/['"](<\/[^<>'"\s]+>|\[\/[^[\]'"\s]+\])['"]/g)) {
    const open = close.replace('/', '');
    const content = `${open}${probeReasoning}${close}${probeAnswer}`;
    const messages = [
      { role: 'user', content: 'zqfirst' },
      { role: 'assistant', content },
      { role: 'user', content: 'zqsecond' },
    ];
    const text = probe.render(messages, false, true);
    if (text?.includes(probeAnswer) && !text.includes(probeReasoning)) return { open, close };
  }
  return undefined;
}

const isMarker = (text: string): boolean =>
  text !== '' && text.length <= markerCharactersMax && !/\s/.test(text) && !text.slice(1).includes(text[0] as string);

/** The marker at the end of the text that begins like `close`. */
function lastMarker(text: string, close: string): string | undefined {
  const word = text.trimEnd().split(/\s/).at(-1) ?? '';
  const at = word.lastIndexOf(close[0] ?? ' ');
  const marker = at < 0 ? '' : word.slice(at);
  return isMarker(marker) && marker !== close ? marker : undefined;
}
