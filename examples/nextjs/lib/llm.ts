// The engine of a Next.js server: loaded by the first request, and kept when the development server reloads modules.
import { type Llm, load } from 'kvasir';

const kept = globalThis as { kvasir?: Promise<Llm> | undefined };

export function engine(): Promise<Llm> {
  kept.kvasir ??= load({ model: process.env.MODEL });
  return kept.kvasir;
}
