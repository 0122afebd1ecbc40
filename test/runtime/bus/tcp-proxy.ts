// A TCP proxy in front of a local server, through which a test delays, loses, suspends and cuts the link.
import { createServer, connect as dial, type Socket } from 'node:net';
import { Prng } from '../../../src/util/prng.ts';

type Pairs = Set<readonly [Socket, Socket]>;
interface State {
  delayMs: number;
  lossRatio: number;
  hangs: boolean;
  cut: boolean;
}

/** Minimum retransmission timeout of TCP. */
const resendMs = 200;

/** Forwards one direction of a connection, in order, each chunk after its delay. */
function forward(from: Socket, to: Socket, state: State, prng: Prng): void {
  const queue: { readonly dueMs: number; readonly bytes: Buffer }[] = [];
  const flush = (): void => {
    while (queue.length > 0 && (queue[0]?.dueMs ?? 0) <= performance.now()) to.write(queue.shift()?.bytes ?? '');
    if (queue.length > 0) wait();
  };
  const wait = (): void => {
    setTimeout(flush, Math.ceil((queue[0]?.dueMs ?? 0) - performance.now()));
  };
  from.on('data', (bytes) => {
    const lateMs = state.delayMs + (prng.chance(state.lossRatio) ? resendMs : 0);
    const dueMs = Math.max(queue.at(-1)?.dueMs ?? 0, performance.now() + lateMs);
    queue.push({ dueMs, bytes });
    if (queue.length === 1) wait();
  });
}

export class TcpProxy {
  readonly url: string;
  readonly #pairs: Pairs;
  readonly #state: State;
  readonly #close: () => void;

  private constructor(url: string, pairs: Pairs, state: State, close: () => void) {
    this.url = url;
    this.#pairs = pairs;
    this.#state = state;
    this.#close = close;
  }

  /** @param target nats://HOST:PORT, or a function that returns it at each connection */
  static async start(target: string | (() => string)): Promise<TcpProxy> {
    const state: State = { delayMs: 0, lossRatio: 0, hangs: false, cut: false };
    const pairs: Pairs = new Set();
    const prng = new Prng(1, 2);
    const server = createServer((inner) => {
      if (state.cut) {
        inner.destroy();
        return;
      }
      const { hostname, port } = new URL(typeof target === 'string' ? target : target());
      const outer = dial(Number(port), hostname);
      const pair = [inner, outer] as const;
      pairs.add(pair);
      const end = (): void => {
        pairs.delete(pair);
        inner.destroy();
        outer.destroy();
      };
      for (const [from, to] of [pair, [outer, inner]] as const) {
        forward(from, to, state, prng);
        from.once('close', end);
        from.on('error', end);
        if (state.hangs) from.pause();
      }
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const address = server.address();
    if (address === null || typeof address === 'string') throw new Error('the proxy has no port');
    return new TcpProxy(`nats://127.0.0.1:${address.port}`, pairs, state, () => server.close());
  }

  /** Delays all forwarded bytes. */
  delay(ms: number): void {
    this.#state.delayMs = ms;
  }

  /** Loses this share of chunks: each arrives after a retransmission timeout, and later ones wait behind it. */
  lose(ratio: number): void {
    this.#state.lossRatio = ratio;
  }

  /** Suspends or resumes all connections without closing them. */
  hang(hangs: boolean): void {
    this.#state.hangs = hangs;
    for (const pair of this.#pairs) for (const socket of pair) hangs ? socket.pause() : socket.resume();
  }

  /** Breaks all connections and refuses new ones, until called with false. */
  cut(cut: boolean): void {
    this.#state.cut = cut;
    if (cut) for (const [inner] of this.#pairs) inner.destroy();
  }

  stop(): void {
    this.cut(true);
    this.#close();
  }
}
