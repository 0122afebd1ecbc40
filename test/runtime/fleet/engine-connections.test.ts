// Connections to engines that are broken: long lines, closed kept connections, and ZMTP messages beyond the limits.
import { createServer as createHttp } from 'node:http';
import { type AddressInfo, connect, createServer as createTcp, type Server, type Socket } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { EngineHttp } from '../../../src/runtime/fleet/engine-http.ts';
import { tcpAddress, ZmtpConnection } from '../../../src/runtime/fleet/zmtp.ts';

const opened: (() => void)[] = [];
afterEach(() => {
  for (const close of opened.splice(0)) close();
});

async function portOf(server: Server): Promise<number> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => void sockets.add(socket));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  opened.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return (server.address() as AddressInfo).port;
}

async function clientOf(server: Server): Promise<EngineHttp> {
  const http = new EngineHttp(`http://127.0.0.1:${await portOf(server)}`, undefined);
  opened.push(() => http.close());
  return http;
}

function post(http: EngineHttp): Promise<string> {
  return new Promise((resolve) => {
    http.post('/', {}, '{}', {
      onEvents: () => {},
      onAnswer: ({ status }) => resolve(`status ${status}`),
      onEnd: (why) => resolve(why ?? 'complete'),
    });
  });
}

it('sends a request again over a new connection, once, when the engine has closed the kept one', async () => {
  let calls = 0;
  const http = await clientOf(
    createHttp((request, response) => {
      calls++;
      if (calls === 1 || calls === 3) response.end('{}');
      else request.socket.destroy();
    }),
  );
  expect(await post(http)).toBe('status 200');
  // The agent keeps the connection from its next turn on.
  await new Promise((resolve) => setImmediate(resolve));
  expect(await post(http)).toBe('status 200');
  expect(calls).toBe(3);
  expect(await post(http)).toBe('ECONNRESET');
  expect(calls).toBeLessThanOrEqual(5);
});

it('ends a stream with a line beyond the limit', async () => {
  const http = await clientOf(
    createHttp((_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write('x'.repeat(2 ** 24 + 1));
    }),
  );
  expect(await post(http)).toContain('a line of the stream is too long');
});

it('joins large ZMTP frames, ends messages of too many frames, and delivers nothing after a close', async () => {
  const peers: ZmtpConnection[] = [];
  const server = createTcp((socket) => {
    const peer = new ZmtpConnection(socket, 'PUB', { onMessage: () => {}, onClose: () => {} });
    peers.push(peer);
  });
  const port = await portOf(server);
  const large = Buffer.alloc(1_000_000, 7);
  const none = Buffer.alloc(0);
  const received: number[][] = [];
  const reason = await new Promise<string>((resolve) => {
    new ZmtpConnection(connect({ host: '127.0.0.1', port }), 'SUB', {
      onReady: () => {
        peers[0].send([none, large]);
        peers[0].send(Array.from({ length: 65 }, () => none));
      },
      onMessage: (frames) => void received.push(frames.map(({ length }) => length)),
      onClose: resolve,
    });
  });
  expect([received, reason]).toEqual([[[0, large.length]], 'a message exceeds 64 frames']);
  let delivered = 0;
  await new Promise<string>((resolve) => {
    const connection = new ZmtpConnection(connect({ host: '127.0.0.1', port }), 'SUB', {
      onReady: () => {
        for (let i = 0; i < 3; i++) peers[1].send([none]);
      },
      onMessage: () => {
        delivered++;
        connection.close();
      },
      onClose: resolve,
    });
  });
  expect(delivered).toBe(1);
});

it('refuses addresses that no socket can have', () => {
  expect(tcpAddress('tcp://[::1]:5557')).toEqual({ host: '::1', port: 5557 });
  for (const address of ['ipc:///a', 'tcp://a', 'tcp://a:65536', 'tcp://a:0'])
    expect(() => tcpAddress(address)).toThrow('Invalid endpoint');
});
