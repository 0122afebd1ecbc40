// The AI SDK over an engine in the same process: tools in several steps, objects, and a streamed response.
import { fileURLToPath } from 'node:url';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { type Llm, load } from 'kvasir';
import { languageModel } from 'kvasir/ai-sdk';
import { z } from 'zod';

const weather = tool({
  description: 'The weather of a place.',
  inputSchema: z.object({ place: z.string().max(20) }),
  execute: async ({ place }) => `7 degrees in ${place}`,
});

/** The answer of a model that may ask for the weather. */
export async function answer(llm: Llm, prompt: string) {
  const model = languageModel(llm);
  return generateText({ model, prompt, tools: { weather }, stopWhen: stepCountIs(2), temperature: 0 });
}

/** An object of a schema. */
export async function extract(llm: Llm, prompt: string) {
  const schema = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(99) });
  const model = languageModel(llm);
  const { output } = await generateText({ model, prompt, temperature: 0, output: Output.object({ schema }) });
  return output;
}

/** A response for any route handler that takes web requests. */
export function respond(llm: Llm, prompt: string, signal?: AbortSignal): Response {
  const model = languageModel(llm);
  return streamText({ model, prompt, temperature: 0, ...(signal && { abortSignal: signal }) }).toTextStreamResponse();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const llm = await load({ model: process.env.MODEL });
  console.log((await answer(llm, 'What is the weather in Oslo?')).text);
  await llm.close();
}
