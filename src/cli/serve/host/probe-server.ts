// The HTTP server of an instance for supervisors and Prometheus: /health, /ready and /metrics.
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { InstanceRole } from '../../../core/protocol/instance-report.ts';
import type { InstanceSnapshot } from '../../../core/protocol/ports.ts';
import { WorkerMetrics } from '../../../gateway/metrics/metrics.ts';

/** What an instance shows of itself. */
export interface ProbedInstance {
  readonly name: string;
  /** Why gateways cannot use it; undefined: they can. */
  notReadyReason(): string | undefined;
  snapshot(): InstanceSnapshot;
  role(): InstanceRole;
}

export class ProbeServer {
  readonly #server: Server;
  readonly #version: string;
  #instance: ProbedInstance | undefined;
  #metrics: WorkerMetrics | undefined;

  private constructor(version: string) {
    this.#version = version;
    this.#server = createServer((incoming, outgoing) => {
      const respond = (status: number, body: string, type = 'application/json'): void => {
        outgoing.writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(body) }).end(body);
      };
      if (incoming.method !== 'GET') respond(405, '{"error":"GET alone is served"}');
      else if (incoming.url === '/health') respond(200, '{"status":"ok"}');
      else if (incoming.url === '/ready') this.#respondReady(respond);
      else if (incoming.url === '/metrics' && this.#metrics !== undefined)
        this.#metrics.render().then(
          ({ contentType, text }) => respond(200, text, contentType),
          (error: unknown) => respond(500, JSON.stringify({ error: String(error) })),
        );
      else respond(404, '{"error":"this port has /health, /ready and /metrics"}');
    });
  }

  /** @throws Error in one line if it cannot listen */
  static open(host: string, port: number, version: string): Promise<ProbeServer> {
    const probes = new ProbeServer(version);
    return new Promise((resolve, reject) => {
      // Later errors, such as a lack of descriptors, concern one connection each: they are ignored.
      probes.#server.on('error', (error) =>
        reject(new Error(`Cannot listen for probes on ${host}:${port}: ${error.message}`)),
      );
      // Alone it does not keep the process alive.
      probes.#server.listen(port, host, () => resolve(probes)).unref();
    });
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** The instance has joined; before that `/ready` is 503. */
  show(instance: ProbedInstance): void {
    this.#instance = instance;
    this.#metrics = new WorkerMetrics({
      version: this.#version,
      instances: () => [{ ...instance.snapshot(), name: instance.name }],
      roles: () => [instance.role()],
    });
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  #respondReady(respond: (status: number, body: string) => void): void {
    const instance = this.#instance;
    const message = instance === undefined ? 'the instance loads its model' : instance.notReadyReason();
    if (message === undefined) respond(200, '{"status":"ready"}');
    else respond(503, JSON.stringify({ status: 'not ready', message }));
  }
}
