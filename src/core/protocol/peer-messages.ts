// Which component of an instance receives a message of another instance.

import type { HandOffMessage, PeerMessage, PipelineMessage, PrefixMessage } from './events.ts';

const families: Readonly<Record<PeerMessage['kind'], 'handOff' | 'prefix' | 'pipeline'>> = {
  reserve: 'handOff',
  reserved: 'handOff',
  declined: 'handOff',
  received: 'handOff',
  release: 'handOff',
  withdraw: 'handOff',
  fetch: 'prefix',
  offer: 'prefix',
  prefixMissing: 'prefix',
  cancelPrefix: 'prefix',
  joinPipeline: 'pipeline',
  joinedPipeline: 'pipeline',
  declinePipeline: 'pipeline',
  leavePipeline: 'pipeline',
};

/** All messages between instances. */
export const peerMessageKinds = Object.keys(families) as readonly PeerMessage['kind'][];

export function isHandOffMessage<Request>(message: PeerMessage<Request>): message is HandOffMessage<Request> {
  return families[message.kind] === 'handOff';
}

export function isPrefixMessage(message: PeerMessage<unknown>): message is PrefixMessage {
  return families[message.kind] === 'prefix';
}

export function isPipelineMessage<Request>(message: PeerMessage<Request>): message is PipelineMessage<Request> {
  return families[message.kind] === 'pipeline';
}
