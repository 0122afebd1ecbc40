// Channels between the threads of instances.
import { MessageChannel, type MessagePort } from 'node:worker_threads';

/** (instances, instances): from one to another; undefined: to itself. */
export function portsBetween(instances: number): readonly (readonly (MessagePort | undefined)[])[] {
  const ports = Array.from({ length: instances }, () => new Array<MessagePort | undefined>(instances));
  for (let from = 0; from < instances; from++) {
    for (let to = 0; to < from; to++) {
      const { port1, port2 } = new MessageChannel();
      ports[from][to] = port1;
      ports[to][from] = port2;
    }
  }
  return ports.map((row) => Array.from(row));
}
