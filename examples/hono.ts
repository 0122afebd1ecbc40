// Routes of Hono: a streamed chat, and an extraction whose type follows from its schema.
import { fileURLToPath } from 'node:url';
import { serve } from '@hono/node-server';
import { Hono } from 'hono';
import { KvasirError, type Llm, load, type Message } from 'kvasir';
import { z } from 'zod';

const person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) });

export function createApp(llm: Llm): Hono {
  const app = new Hono();
  app.post('/chat', async (context) => {
    const { messages, temperature } = await context.req.json<{ messages: Message[]; temperature?: number }>();
    const run = llm.chat(messages, { maxTokens: 512, temperature, signal: context.req.raw.signal });
    await run.accepted;
    return new Response(run.textStream(), { headers: { 'content-type': 'text/plain; charset=utf-8' } });
  });
  app.post('/person', async (context) => {
    const prompt = `Write this person as JSON with name and age: ${await context.req.text()}`;
    const { object } = await llm.chat(prompt, { schema: person, temperature: 0, signal: context.req.raw.signal });
    return context.json({ name: object.name, age: object.age });
  });
  app.onError((error, context) => {
    if (!(error instanceof KvasirError)) throw error;
    return context.json({ error: error.message, code: error.code }, error.status as 500);
  });
  return app;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  serve({ fetch: createApp(await load({ model: process.env.MODEL })).fetch, port: 3000 });
  console.log('curl localhost:3000/person --data "Ada, 36"');
}
