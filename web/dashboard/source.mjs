// Where frames come from: the gateway, polled with the user's key.

const keyName = 'kvasir-key';
const pollMs = 1000;

export const storedKey = () => sessionStorage.getItem(keyName) ?? '';
export const storeKey = (key) => sessionStorage.setItem(keyName, key);

/** Fetches from the gateway with the key. */
export function authorised(path, options = {}) {
  const key = storedKey();
  const headers = { ...options.headers, ...(key !== '' && { authorization: `Bearer ${key}` }) };
  return fetch(path, { ...options, headers });
}

/** Polls frames until it is stopped; a hidden page polls no frames. */
export class LiveSource {
  #on;
  #timer;
  #since = 0;
  /** Grows with each start and stop: an earlier poll in flight then has no effect. */
  #generation = 0;
  paused = false;

  /** @param on `frame(frame, size)`, `denied(message)` and `lost(message)` */
  constructor(on) {
    this.#on = on;
  }

  start() {
    this.stop();
    void this.#poll(this.#generation);
  }

  stop() {
    clearTimeout(this.#timer);
    this.#generation++;
  }

  async #poll(generation) {
    let next = pollMs;
    try {
      if (!this.paused && !document.hidden) next = await this.#fetch(generation);
    } catch (error) {
      if (generation !== this.#generation) return;
      this.#on.lost(error instanceof Error ? error.message : String(error));
    }
    if (next > 0 && generation === this.#generation) this.#timer = setTimeout(() => void this.#poll(generation), next);
  }

  /** The time until the next poll; 0: none without another key. */
  async #fetch(generation) {
    const response = await authorised(`/api/dashboard?since=${this.#since}`);
    const text = await response.text();
    const body = JSON.parse(text);
    if (generation !== this.#generation) return 0;
    if (response.status === 401 || response.status === 403) {
      this.#on.denied(body.error.message);
      return 0;
    }
    if (!response.ok) throw new Error(body.error.message);
    this.#since = body.now_ms;
    this.#on.frame(body, text.length);
    return pollMs;
  }
}
