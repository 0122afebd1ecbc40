// `kvasir bench fleet`: what a stream takes through the gateway beyond the engine itself, beside a bare proxy, in turns.
import { percentile, round } from '../statistics.ts';
import { type StreamLoad, type StreamTimes, saturatingStreams, timedStreams } from './timed-streams.ts';

export interface ConductorOverheadOptions extends Omit<StreamLoad, 'url'> {
  /** Servers by name, the engine itself first. */
  readonly servers: readonly (readonly [name: string, url: string])[];
  readonly rounds: number;
  /** Untimed requests to each server: V8 compiles what runs often, and the first thousands take three times as long. */
  readonly warmUp: number;
  readonly onProgress?: ((line: string) => void) | undefined;
}

export interface ServerRow {
  readonly through: string;
  /** Requests. */
  readonly n: number;
  readonly firstMs: Percentiles;
  /** Of `firstMs`, beyond that of the engine itself. */
  readonly addedMs: Percentiles;
  readonly wholeMs: Percentiles;
  /** Processor time of the server's process per request. */
  readonly cpuMs: number;
}

interface Percentiles {
  readonly p50: number;
  readonly p99: number;
}

/** Streams at once before the first round. */
const warmUpLanes = 32;

/** @throws Error if a request fails */
export async function benchConductorOverhead(options: ConductorOverheadOptions): Promise<readonly ServerRow[]> {
  const { servers, rounds, warmUp, onProgress } = options;
  const measured = servers.map(([through, url]) => ({ through, url, times: [] as StreamTimes[], cpuS: 0 }));
  for (const [name, url] of servers) {
    await saturatingStreams({ ...options, url }, warmUp, warmUpLanes);
    onProgress?.(`${name} is warm`);
  }
  for (let i = 1; i <= rounds; i++) {
    for (const server of measured) {
      const beforeS = await cpuSecondsOf(server.url);
      server.times.push(...(await timedStreams({ ...options, url: server.url })));
      server.cpuS += (await cpuSecondsOf(server.url)) - beforeS;
    }
    onProgress?.(`round ${i} of ${rounds}`);
  }
  const engine = percentiles(measured[0].times.map(({ firstMs }) => firstMs));
  return measured.map(({ through, times, cpuS }) => {
    const first = percentiles(times.map(({ firstMs }) => firstMs));
    return {
      ...{ through, n: times.length, firstMs: first },
      addedMs: { p50: round(first.p50 - engine.p50), p99: round(first.p99 - engine.p99) },
      wholeMs: percentiles(times.map(({ wholeMs }) => wholeMs)),
      cpuMs: round((1000 * cpuS) / times.length),
    };
  });
}

function percentiles(values: readonly number[]): Percentiles {
  const at = (p: number): number => round(percentile(values, p) ?? Number.NaN);
  return { p50: at(50), p99: at(99) };
}

/** @throws Error if the server does not state it */
async function cpuSecondsOf(url: string): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text();
  const value = /^process_cpu_seconds_total (\S+)/m.exec(text)?.[1];
  if (value === undefined) throw new Error(`Cannot bench the fleet: ${url}/metrics states no processor time`);
  return Number(value);
}
