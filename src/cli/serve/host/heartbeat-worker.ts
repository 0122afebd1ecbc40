// Entry of the heartbeat thread of a gateway: connects to NATS, and repeats the gateway's announcements while its event loop stalls.
import { parentPort, workerData } from 'node:worker_threads';
import { AuthenticatedBus } from '../../../runtime/bus/authenticated-bus.ts';
import { connectNats } from '../../../runtime/bus/nats-bus.ts';
import type { NatsServers } from '../../../runtime/bus/nats-connection.ts';
import { type HeartbeatThreadData, repeatHeartbeats } from '../../../runtime/processes/heartbeat-thread.ts';

/** How the thread reaches its cluster. */
export interface HeartbeatSettings {
  readonly nats: NatsServers;
  readonly cluster: string;
  readonly token: string;
}

if (parentPort === null) throw new Error('Cannot repeat heartbeats: this module is the entry of a thread');
const data: HeartbeatThreadData<HeartbeatSettings> = workerData;
const { nats, cluster, token } = data.settings;
// The owner logs the state of the server.
const log = (): void => {};
repeatHeartbeats(
  new AuthenticatedBus(await connectNats(nats, cluster, log), { token, cluster, log }),
  data,
  parentPort,
);
