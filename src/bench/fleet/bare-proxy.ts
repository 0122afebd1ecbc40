// The least that a gateway in Node.js can do: pass requests and answers on, over kept connections, unread.
import { Agent, createServer, request, type Server } from 'node:http';
import { cpuSample } from './fake-engine.ts';

/** Passes everything on to `engine`, but `/metrics`, which has its own processor time. */
export function bareProxy(engine: string): Server {
  const { hostname, port } = new URL(engine);
  const agent = new Agent({ keepAlive: true, maxFreeSockets: 256 });
  const server = createServer((incoming, outgoing) => {
    const { url: path, method, headers } = incoming;
    if (path === '/metrics') {
      outgoing.end(cpuSample());
      return;
    }
    const passed = request({ hostname, port, path, method, headers, agent }, (answer) => {
      outgoing.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(outgoing);
    });
    passed.on('error', () => outgoing.destroy());
    passed.setNoDelay(true);
    incoming.pipe(passed);
  });
  // Longer than any pause between rounds.
  server.keepAliveTimeout = 75_000;
  return server;
}
