// The context of an instance's links to other processes: its process, its thread, its requests and its names for peers.
import type { InstanceIndex, RequestId } from '../../core/protocol/ids.ts';
import type { GenerationRequest } from '../../core/protocol/ports.ts';
import type { ClusterProcess } from '../processes/peer-session.ts';
import type { InstanceThread } from '../threads/instance-thread.ts';
import type { SessionName } from '../wire/names.ts';

/** The requests of an instance, under the ids that they have there. */
export interface RequestRegistry {
  /**
   * Registers a gateway's request that a peer sends or computes with this instance. Returns its id here; undefined if the gateway's session is
   * unknown. @param receiving nothing is computed here before the prompt has been received @throws Error for a request that must be refused
   */
  register(gateway: SessionName, request: GenerationRequest, receiving: boolean): RequestId | undefined;
  /** The prompt has been received. */
  onReceived(id: RequestId): void;
  /** The request continues elsewhere, or not at all. */
  release(id: RequestId): void;
}

export interface PeerContext {
  readonly process: ClusterProcess;
  readonly thread: Pick<InstanceThread, 'send'>;
  readonly requests: RequestRegistry;
  /** By the thread's index, the names of the peers that are connected or awaited. */
  readonly names: Map<InstanceIndex, string>;
}
