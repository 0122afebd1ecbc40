// The log line of a process that is to use RDMA: its device, or the reason why it uses tcp.
import { findNative } from '../../../kernel/native/addon.ts';
import type { Transport } from '../../../runtime/transfer/messenger.ts';

/** Logs one line if the transport is RDMA. Connections without a device use tcp by themselves. */
export function logRdmaDevice(transport: Transport | undefined, log: (line: string) => void): void {
  if (transport !== 'rdma') return;
  const found = findNative();
  if (found.kind === 'absent') return;
  try {
    log(`KV pages move over RDMA: ${found.native.rdmaDevice()}`);
  } catch (error) {
    log(`Cannot use RDMA, KV pages move over tcp: ${error instanceof Error ? error.message : String(error)}`);
  }
}
