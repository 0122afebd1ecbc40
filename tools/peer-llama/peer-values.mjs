// llama.cpp as a process that returns token ids, pieces or logits, one line for each command.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { buildPeer } from './build-peer.mjs';

export class PeerValues {
  #child;
  #lines;

  /** @param {{ folder: string, model: string, vocabularyOnly?: boolean }} options folder: where node-llama-cpp was installed */
  static async open({ folder, model, vocabularyOnly = false }) {
    const { binary, libraries } = buildPeer(folder, 'values');
    const peer = new PeerValues(spawn(binary, [model, libraries, ...(vocabularyOnly ? ['vocabulary'] : [])], { stdio: ['pipe', 'pipe', 'inherit'] }));
    await peer.#next();
    return peer;
  }

  constructor(child) {
    this.#child = child;
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  }

  /** Ids of a text, without special tokens. */
  async tokens(text) {
    return numbersOf(await this.#request(`tokens ${Buffer.from(text).toString('hex')}`));
  }

  /** Ids of a text with the special tokens that the file requires and those in the text. */
  async marked(text) {
    return numbersOf(await this.#request(`marked ${Buffer.from(text).toString('hex')}`));
  }

  /** (vocabulary) logits behind these tokens. */
  async logits(ids) {
    return Float32Array.from(numbersOf(await this.#request(`logits ${ids.join(' ')}`)));
  }

  close() {
    this.#child.stdin.end();
  }

  #request(line) {
    this.#child.stdin.write(`${line}\n`);
    return this.#next();
  }

  async #next() {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error('Cannot query the peer: it ended');
    return value;
  }
}

const numbersOf = (line) => line.split(' ').filter(Boolean).map(Number);
