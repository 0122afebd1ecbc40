// A route handler of Next.js, POST /api/chat. next.config: `serverExternalPackages: ['kvasir']`.
import { KvasirError, type Message } from 'kvasir';
import { engine } from '../../../lib/llm.ts';

export const runtime = 'nodejs';

export async function POST(request: Request): Promise<Response> {
  const { messages, temperature } = (await request.json()) as { messages: Message[]; temperature?: number };
  const run = (await engine()).chat(messages, { maxTokens: 512, temperature, signal: request.signal });
  try {
    // A refusal has a status of its own: it comes before the response begins.
    await run.accepted;
  } catch (error) {
    if (!(error instanceof KvasirError)) throw error;
    return Response.json({ error: error.message, code: error.code }, { status: error.status });
  }
  return new Response(run.textStream(), { headers: { 'content-type': 'text/plain; charset=utf-8' } });
}
