// A chat route of Express: the answer is sent while it is generated, and a client that leaves ends its request.
import { fileURLToPath } from 'node:url';
import express from 'express';
import { KvasirError, type Llm, load, type Message } from 'kvasir';

export function createApp(llm: Llm): express.Express {
  const app = express();
  app.use(express.json());
  app.post('/chat', async (request, response) => {
    const { messages, temperature } = request.body as { messages: Message[]; temperature?: number };
    const run = llm.chat(messages, { maxTokens: 512, temperature });
    response.on('close', () => run.cancel());
    try {
      await run.accepted;
      response.type('text/plain');
      for await (const delta of run) if (delta.type === 'text') response.write(delta.text);
      response.end();
    } catch (error) {
      if (!(error instanceof KvasirError) || response.headersSent) response.destroy();
      else response.status(error.status).json({ error: error.message, code: error.code });
    }
  });
  return app;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  createApp(await load({ model: process.env.MODEL })).listen(3000);
  console.log('curl localhost:3000/chat --json \'{"messages":[{"role":"user","content":"Tell me a story."}]}\'');
}
