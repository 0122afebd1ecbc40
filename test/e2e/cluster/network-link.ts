// A link between this host and a network namespace, which can be cut and slowed. Requires permission to create one.
import { spawnSync } from 'node:child_process';

function run(command: string): boolean {
  const [program = '', ...args] = command.split(' ');
  return spawnSync(program, args, { stdio: 'ignore' }).status === 0;
}

export class NetworkLink {
  readonly #space: string;
  readonly #device: string;
  /** Addresses of this host, and of the process inside. */
  readonly here: string;
  readonly there: string;
  /** Command prefix that runs a command in the namespace. */
  readonly within: readonly string[];

  /** Undefined if it is not permitted, or `ip` and `tc` are not installed. */
  static open(): NetworkLink | undefined {
    const link = new NetworkLink();
    if (link.#create()) return link;
    link.close();
    return undefined;
  }

  private constructor() {
    this.#space = `kvasir-${process.pid}`;
    this.#device = `kv${process.pid}`;
    const net = `10.${200 + (process.pid % 50)}.${Math.floor(process.pid / 50) % 250}`;
    this.here = `${net}.1`;
    this.there = `${net}.2`;
    this.within = ['ip', 'netns', 'exec', this.#space];
  }

  #create(): boolean {
    const [device, space] = [this.#device, this.#space];
    return [
      `ip netns add ${space}`,
      `ip link add ${device} type veth peer name ${device}n netns ${space}`,
      `ip addr add ${this.here}/24 dev ${device}`,
      `ip -n ${space} addr add ${this.there}/24 dev ${device}n`,
      `ip -n ${space} link set lo up`,
      `ip -n ${space} link set ${device}n up`,
      `ip link set ${device} up`,
      `tc qdisc add dev ${device} root tbf rate 10gbit burst 1m latency 100ms`,
    ].every(run);
  }

  /** Limits the rate towards the namespace with a token bucket. */
  limit(rate: string): void {
    if (!run(`tc qdisc replace dev ${this.#device} root tbf rate ${rate} burst 64kb latency 200ms`))
      throw new Error(`Cannot limit ${this.#device} to ${rate}`);
  }

  cut(down: boolean): void {
    if (!run(`ip link set ${this.#device} ${down ? 'down' : 'up'}`)) throw new Error(`Cannot cut ${this.#device}`);
  }

  close(): void {
    run(`ip link del ${this.#device}`);
    run(`ip netns del ${this.#space}`);
  }
}
