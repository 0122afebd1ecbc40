// A link that a test can slow down, let hang and cut: a proxy in front of a server on this machine.
import { createServer, connect as dial, type Socket } from 'node:net';

type Pairs = Set<readonly [Socket, Socket]>;
interface State {
  delayMs: number;
  hangs: boolean;
  cut: boolean;
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

  /** @param target nats://HOST:PORT */
  static async start(target: string): Promise<TcpProxy> {
    const { hostname, port } = new URL(target);
    const state: State = { delayMs: 0, hangs: false, cut: false };
    const pairs: Pairs = new Set();
    const server = createServer((inner) => {
      if (state.cut) {
        inner.destroy();
        return;
      }
      const outer = dial(Number(port), hostname);
      const pair = [inner, outer] as const;
      pairs.add(pair);
      const end = (): void => {
        pairs.delete(pair);
        inner.destroy();
        outer.destroy();
      };
      for (const [from, to] of [pair, [outer, inner]] as const) {
        from.on('data', (bytes) => setTimeout(() => to.write(bytes), state.delayMs));
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

  /** All that passes comes so much later; what is under way keeps its order as long as this only grows. */
  delay(ms: number): void {
    this.#state.delayMs = ms;
  }

  /** Nothing passes and nobody is told, until it is let go on. */
  hang(hangs: boolean): void {
    this.#state.hangs = hangs;
    for (const pair of this.#pairs) for (const socket of pair) hangs ? socket.pause() : socket.resume();
  }

  /** Connections break, and none can be made until it is mended. */
  cut(cut: boolean): void {
    this.#state.cut = cut;
    if (cut) for (const [inner] of this.#pairs) inner.destroy();
  }

  stop(): void {
    this.cut(true);
    this.#close();
  }
}
