// A thread with a network between a model worker and an attention worker: it forwards their frames, and spoils those
// that it is asked to. Frames are those of native/workers/worker_frames.hpp.
import { connect, createServer } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';

const { target } = workerData;
const checksumBytes = 8;

/** From the model worker: its handshake and its description, then steps, queries, keys and pages. */
const requests = {
  prefixBytes: 104,
  headBytes: 72,
  kindOf: (head) => [undefined, 'step', 'query', 'keys', 'pages'][head.readUInt32LE(8)],
  bodyBytes: (head) =>
    (head.readUInt32LE(8) === 2 ? 4 * head.readUInt32LE(44) : 0) +
    (head.readUInt32LE(8) === 4 ? 4 * head.readUInt32LE(40) : 0) +
    Number(head.readBigUInt64LE(56)) +
    checksumBytes,
};
/** From the attention worker: its handshake and its description, then results, and heartbeats without a body. */
const answers = {
  prefixBytes: 128,
  headBytes: 56,
  kindOf: (head) => (head.readUInt32LE(8) === 1 ? 'result' : undefined),
  bodyBytes: (head) => (head.readUInt32LE(8) === 1 ? Number(head.readBigUInt64LE(24)) + checksumBytes : 0),
};

/** Of the next fault: `{ kind, anomaly, skips, ms, at }`; undefined: none. */
let fault;
/** By kind: the first frame of each connection, of its first step. */
let earliest = new Map();
/** Sends what is held back on an earlier connection; undefined: nothing is. */
let release;
/** Frames by kind, and what was done. */
let counts = { step: 0, query: 0, keys: 0, pages: 0, result: 0, spoilt: 0 };

/** Cuts a stream into its prefix and its frames. */
class Frames {
  #form;
  #onFrame;
  #bytes = Buffer.alloc(0);
  #prefixBytes;

  constructor(form, onFrame) {
    this.#form = form;
    this.#onFrame = onFrame;
    this.#prefixBytes = form.prefixBytes;
  }

  add(arrived) {
    // The sides answer each other within the handshake.
    const prefix = arrived.subarray(0, this.#prefixBytes);
    this.#prefixBytes -= prefix.length;
    if (prefix.length > 0) this.#onFrame(undefined, prefix);
    this.#bytes = Buffer.concat([this.#bytes, arrived.subarray(prefix.length)]);
    const { headBytes, kindOf, bodyBytes } = this.#form;
    while (this.#bytes.length >= headBytes) {
      const size = headBytes + bodyBytes(this.#bytes);
      if (this.#bytes.length < size) return;
      const frame = Buffer.from(this.#bytes.subarray(0, size));
      this.#bytes = this.#bytes.subarray(size);
      this.#onFrame(kindOf(frame), frame);
    }
  }
}

/** Writes frames in order, delayed ones included. */
class Line {
  #socket;
  #cut;
  #free = Promise.resolve();
  /** A frame that the next one overtakes. */
  #held;
  /** Frames that arrive after those of the next connection; undefined: none. */
  #withheld;

  constructor(socket, cut) {
    this.#socket = socket;
    this.#cut = cut;
  }

  get isWithheld() {
    return this.#withheld !== undefined;
  }

  forward(kind, frame) {
    if (kind !== undefined) {
      counts[kind]++;
      if (!earliest.has(kind)) earliest.set(kind, frame);
    }
    const now = kind !== undefined && kind === fault?.kind && fault.skips-- === 0 ? fault : undefined;
    if (this.#withheld !== undefined) this.#withheld.push(frame);
    else if (now === undefined) this.#write(frame);
    else {
      fault = undefined;
      counts.spoilt++;
      this.#spoil(now, kind, frame);
    }
    if (now === undefined && this.#held !== undefined) {
      const held = this.#held;
      this.#held = undefined;
      this.#write(held);
    }
  }

  #spoil({ anomaly, ms, at }, kind, frame) {
    switch (anomaly) {
      case 'lost':
        break;
      case 'twice':
        this.#write(frame);
        this.#write(frame);
        break;
      case 'late':
        this.#wait(ms);
        this.#write(frame);
        break;
      case 'withheld':
        this.#withheld = [frame];
        release = () => {
          for (const each of this.#withheld.splice(0)) this.#socket.write(each);
        };
        break;
      case 'overtaken':
        this.#held = frame;
        break;
      case 'orphan':
        this.#write(earliest.get(kind));
        this.#write(frame);
        break;
      case 'truncated':
        this.#write(frame.subarray(0, Math.floor(frame.length * at)));
        break;
      case 'corrupt':
        frame[Math.floor(frame.length * at)] ^= 1 << Math.floor(8 * at);
        this.#write(frame);
        break;
      case 'cut':
        this.#write(frame.subarray(0, Math.floor(frame.length * at)));
        this.#free = this.#free.then(this.#cut);
        break;
      default:
        throw new Error(`Cannot spoil a frame: ${anomaly}`);
    }
  }

  #wait(ms) {
    this.#free = this.#free.then(() => new Promise((resolve) => setTimeout(resolve, ms)));
  }

  #write(frame) {
    this.#free = this.#free.then(() => {
      if (!this.#socket.destroyed) this.#socket.write(frame);
    });
  }
}

const server = createServer((model) => {
  const worker = connect(target);
  earliest = new Map();
  const cut = () => {
    model.destroy();
    // The worker does not learn that the model worker has closed the connection while its frames are on their way.
    if (!toWorker.isWithheld) worker.destroy();
  };
  const [toWorker, toModel] = [new Line(worker, cut), new Line(model, cut)];
  const [fromModel, fromWorker] = [
    new Frames(requests, (kind, frame) => toWorker.forward(kind, frame)),
    new Frames(answers, (kind, frame) => toModel.forward(kind, frame)),
  ];
  model.on('data', (bytes) => fromModel.add(bytes));
  worker.on('data', (bytes) => fromWorker.add(bytes));
  for (const socket of [model, worker]) {
    socket.setNoDelay(true);
    socket.on('error', () => {});
    socket.on('close', cut);
  }
});

server.listen(0, '127.0.0.1', () => parentPort.postMessage({ port: server.address().port }));

parentPort.on('message', (next) => {
  if (next === 'release') release?.();
  else fault = next;
  parentPort.postMessage(counts);
  counts = { step: 0, query: 0, keys: 0, pages: 0, result: 0, spoilt: 0 };
});
