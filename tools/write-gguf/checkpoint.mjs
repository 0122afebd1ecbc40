// Reads a Hugging Face checkpoint of one file: its configuration, and its tensors as float32.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

/** @typedef {{ shape: readonly number[], values: Float32Array }} Values row-major, outermost first */

/** @returns {{ config: Record<string, any>, tensors: Map<string, Values> }} */
export function readCheckpoint(/** @type {string} */ folder) {
  const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8'));
  const bytes = readFileSync(join(folder, 'model.safetensors'));
  const start = 8 + Number(bytes.readBigUInt64LE());
  const header = JSON.parse(bytes.toString('utf8', 8, start));
  const entries = Object.entries(header).filter(([name]) => name !== '__metadata__');
  const tensors = entries.map(([name, { dtype, shape, data_offsets: [from, to] }]) => {
    const data = bytes.subarray(start + from, start + to);
    return /** @type {const} */ ([name, { shape, values: floats(name, dtype, data) }]);
  });
  return { config, tensors: new Map(tensors) };
}

function floats(name, dtype, data) {
  // A copy, since the data may be misaligned for float32.
  const { buffer } = Uint8Array.from(data);
  if (dtype === 'F32') return new Float32Array(buffer);
  if (dtype !== 'BF16') throw new Error(`Cannot read ${name}: dtype ${dtype}, known are F32 and BF16`);
  return new Float32Array(Uint32Array.from(new Uint16Array(buffer), (bits) => bits << 16).buffer);
}
