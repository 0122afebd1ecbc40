// The special tokens that markers of calls and reasoning are made of.

import type { Tokenizer } from '../tokenizer.ts';
import type { CallFormat, ReasoningFormat } from './call-format.ts';
import { OutputFormats, type TemplateOwner } from './output-formats.ts';

interface Markers {
  readonly calls: CallFormat | undefined;
  readonly reasoning: ReasoningFormat | undefined;
}

/** Special tokens in the markers: a parser or a grammar needs their spelling. */
export function markerTokens(
  { calls, reasoning }: Markers,
  tokenizer: Pick<Tokenizer, 'encode' | 'isSpecial'>,
): ReadonlySet<number> {
  const markers = calls === undefined ? [] : callMarkers(calls);
  if (reasoning !== undefined) markers.push(reasoning.open, reasoning.close);
  const ids = markers.flatMap((marker) => tokenizer.encode(marker, { addSpecial: false }));
  return new Set(ids.filter((id) => tokenizer.isSpecial(id)));
}

/** The marker tokens of a model's own formats. */
export function markerTokensOf(owner: TemplateOwner & { readonly tokenizer: Tokenizer }): ReadonlySet<number> {
  const formats = OutputFormats.of(owner);
  const calls = 'format' in formats.calls ? formats.calls.format : undefined;
  return markerTokens({ calls, reasoning: formats.reasoning }, owner.tokenizer);
}

function callMarkers({ sectionOpen, callOpen, callClose, sectionClose, shape }: CallFormat): string[] {
  const inner = shape.kind === 'json' || shape.kind === 'python' ? [] : [shape.nameEnd];
  if (shape.kind === 'named' && shape.idOpen !== undefined) inner.push(shape.idOpen);
  if (shape.kind === 'pairs') inner.push(shape.keyOpen, shape.keyEnd, shape.valueEnd);
  return [sectionOpen, callOpen, callClose, sectionClose, ...inner].map((text) => text.trim()).filter(Boolean);
}
