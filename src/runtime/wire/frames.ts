// Frames of a channel on the bus: a fixed head, then the bytes of a part, or the status that an ack carries.

import { describeVersions, type WireVersions, wireVersion, wireVersions } from './versions.ts';

/** The leading side numbers sessions: a higher number starts a session, and ends all earlier ones. */
export type Frame =
  | {
      readonly kind: 'part';
      readonly session: number;
      readonly number: number;
      readonly last: boolean;
      readonly bytes: Uint8Array;
    }
  /** Sent at a fixed interval: the last parts sent and received in the session, and the status of the sender. */
  | {
      readonly kind: 'ack';
      readonly session: number;
      readonly sent: number;
      readonly received: number;
      readonly bytes: Uint8Array;
    }
  | { readonly kind: 'nack'; readonly session: number; readonly from: number }
  /** To the leading side: the session has ended here. */
  | { readonly kind: 'ended'; readonly session: number };

const kinds = ['part', 'ack', 'nack', 'ended'] as const;
const headBytes = 16;

/** @param version that of the session */
export function encodeFrame(frame: Frame, version = wireVersion): Uint8Array {
  const tail = 'bytes' in frame ? frame.bytes : new Uint8Array();
  const bytes = new Uint8Array(headBytes + tail.length);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, version);
  view.setUint8(1, kinds.indexOf(frame.kind));
  view.setUint32(4, frame.session, true);
  const [a, b] = figuresOf(frame);
  view.setUint32(8, a, true);
  view.setUint32(12, b, true);
  bytes.set(tail, headBytes);
  return bytes;
}

function figuresOf(frame: Frame): readonly [number, number] {
  switch (frame.kind) {
    case 'part':
      return [frame.number, Number(frame.last)];
    case 'ack':
      return [frame.sent, frame.received];
    case 'nack':
      return [frame.from, 0];
    case 'ended':
      return [0, 0];
  }
}

/** The bytes share memory with the payload. @throws Error for a malformed frame */
export function decodeFrame(payload: Uint8Array, { min, max }: WireVersions = wireVersions): Frame {
  const version = payload[0] ?? 0;
  if (version < min || version > max) {
    const own = describeVersions({ version: max, versionMin: min });
    throw new Error(`Cannot read a frame: its wire version is ${version}, that of this process ${own}`);
  }
  const kind = kinds[payload[1] ?? kinds.length];
  if (payload.length < headBytes || kind === undefined) throw new Error('Cannot read a frame: its head is malformed');
  const view = new DataView(payload.buffer, payload.byteOffset);
  const session = view.getUint32(4, true);
  const a = view.getUint32(8, true);
  const b = view.getUint32(12, true);
  const bytes = payload.subarray(headBytes);
  switch (kind) {
    case 'part':
      return { kind, session, number: a, last: b === 1, bytes };
    case 'ack':
      return { kind, session, sent: a, received: b, bytes };
    case 'nack':
      return { kind, session, from: a };
    case 'ended':
      return { kind, session };
  }
}
