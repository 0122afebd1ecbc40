// A link that a test can slow down, let hang and cut: a proxy in front of a server on this machine.
import { createServer, connect as dial, type Socket } from 'node:net';
import { Prng } from '../../../src/sim/lending/dice.ts';

type Pairs = Set<readonly [Socket, Socket]>;
interface State {
  delayMs: number;
  lossRatio: number;
  hangs: boolean;
  cut: boolean;
}

/** What TCP waits before it sends again, at least. */
const resendMs = 200;

/** One way of a connection: what comes leaves in order, when its time has come. */
function pass(from: Socket, to: Socket, state: State, dice: Prng): void {
  const queue: { readonly dueMs: number; readonly bytes: Buffer }[] = [];
  const leave = (): void => {
    while (queue.length > 0 && (queue[0]?.dueMs ?? 0) <= performance.now()) to.write(queue.shift()?.bytes ?? '');
    if (queue.length > 0) wait();
  };
  const wait = (): void => {
    setTimeout(leave, Math.ceil((queue[0]?.dueMs ?? 0) - performance.now()));
  };
  from.on('data', (bytes) => {
    const lateMs = state.delayMs + (dice.chance(state.lossRatio) ? resendMs : 0);
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

  /** @param target nats://HOST:PORT, or what says it once somebody connects */
  static async start(target: string | (() => string)): Promise<TcpProxy> {
    const state: State = { delayMs: 0, lossRatio: 0, hangs: false, cut: false };
    const pairs: Pairs = new Set();
    const dice = new Prng(1, 2);
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
        pass(from, to, state, dice);
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

  /** All that passes comes so much later. */
  delay(ms: number): void {
    this.#state.delayMs = ms;
  }

  /** Such a share of what passes is lost: it comes when TCP has sent it again, and what follows waits for it. */
  lose(ratio: number): void {
    this.#state.lossRatio = ratio;
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
