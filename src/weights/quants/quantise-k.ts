// Quantises float32 blocks to the five-bit and K types: the range of each group sets its scale, without a search for a
// better one.
import type { QuantisedType } from '../../util/quantised-blocks.ts';
import { f16ToF32Bits, toF16 } from './half.ts';

type PlainType = Exclude<QuantisedType, 'q4_0' | 'q4_1' | 'q8_0'>;

interface Rule {
  readonly block: number;
  readonly bytes: number;
  readonly group: number;
  /** Levels range from 0 to this. */
  readonly levelMax: number;
  /** The level of value 0. undefined: the group stores a minimum instead. */
  readonly zero?: number;
  /** Stored group scales range up to this, times d. undefined: the group is the block and d its scale. */
  readonly scaleMax?: number;
  readonly write: (coded: Coded) => void;
}

/** A quantised block before packing. d and dmin are f16 bit patterns. */
interface Coded {
  readonly bytes: Uint8Array;
  readonly levels: Uint8Array;
  readonly scales: Int8Array;
  readonly minimums: Uint8Array;
  readonly d: number;
  readonly dmin: number;
}

const rules: Readonly<Record<PlainType, Rule>> = {
  q5_0: { block: 32, bytes: 22, group: 32, levelMax: 31, zero: 16, write: writeFiveBits },
  q5_1: { block: 32, bytes: 24, group: 32, levelMax: 31, write: writeFiveBits },
  q2_k: { block: 256, bytes: 84, group: 16, levelMax: 3, scaleMax: 15, write: writeQ2K },
  q3_k: { block: 256, bytes: 110, group: 16, levelMax: 7, zero: 4, scaleMax: 31, write: writeQ3K },
  q4_k: { block: 256, bytes: 144, group: 32, levelMax: 15, scaleMax: 63, write: writeQ4K },
  q5_k: { block: 256, bytes: 176, group: 32, levelMax: 31, scaleMax: 63, write: writeQ5K },
  q6_k: { block: 256, bytes: 210, group: 16, levelMax: 63, zero: 32, scaleMax: 127, write: writeQ6K },
};

/** An encoder of whole blocks. Earlier content of `bytes` is overwritten. */
export function plainEncoder(type: PlainType): (values: Float32Array, bytes: Uint8Array) => void {
  const rule = rules[type];
  return (values, bytes) => {
    bytes.fill(0);
    for (let block = 0; block * rule.block < values.length; block++) {
      const from = values.subarray(block * rule.block, (block + 1) * rule.block);
      encodeBlock(rule, from, bytes.subarray(block * rule.bytes, (block + 1) * rule.bytes));
    }
  };
}

function encodeBlock(rule: Rule, values: Float32Array, bytes: Uint8Array): void {
  const groups = Array.from({ length: rule.block / rule.group }, (_, group) => {
    const part = values.subarray(group * rule.group, (group + 1) * rule.group);
    return rule.zero === undefined
      ? rangeOf(part, rule.levelMax, rule.scaleMax !== undefined)
      : peakOf(part, rule.zero);
  });
  const { scaleMax = 1 } = rule;
  const d = toF16(largest(groups.map(({ scale }) => scale)) / scaleMax);
  const dmin = toF16(largest(groups.map(({ minimum }) => minimum)) / scaleMax);
  const scales = Int8Array.from(groups, ({ scale }) => clamp(scale / f16(d), -scaleMax, scaleMax));
  const minimums = Uint8Array.from(groups, ({ minimum }) => clamp(minimum / f16(dmin), 0, scaleMax));
  const levels = Uint8Array.from(values, (value, index) => {
    const group = Math.floor(index / rule.group);
    const offset = rule.zero === undefined ? -f16(dmin) * (minimums[group] as number) : 0;
    const step = f16(d) * (scales[group] as number);
    return clamp((value - offset) / step + (rule.zero ?? 0), 0, rule.levelMax);
  });
  rule.write({ bytes, levels, scales, minimums, d, dmin });
}

interface Group {
  readonly scale: number;
  /** The offset that is subtracted. */
  readonly minimum: number;
}

/** K types subtract an unsigned multiple of dmin, so their range starts at 0 or below. */
function rangeOf(values: Float32Array, levelMax: number, fromZero: boolean): Group {
  const least = Math.min(...values, ...(fromZero ? [0] : []));
  return { scale: (Math.max(...values) - least) / levelMax, minimum: -least };
}

/** The value of largest magnitude becomes level 0. */
function peakOf(values: Float32Array, zero: number): Group {
  return { scale: largest([...values]) / -zero, minimum: 0 };
}

/** The number of largest magnitude, signed. */
function largest(numbers: readonly number[]): number {
  return numbers.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
}

/** A quotient of a zero range becomes 0. */
function clamp(value: number, least: number, most: number): number {
  return Number.isFinite(value) ? Math.max(least, Math.min(most, Math.round(value))) : 0;
}

const pattern = new Uint32Array(1);
const float = new Float32Array(pattern.buffer);

function f16(half: number): number {
  pattern[0] = f16ToF32Bits(half);
  return float[0] as number;
}

function put(bytes: Uint8Array, at: number, shift: number, value: number): void {
  bytes[at] = (bytes[at] as number) | (value << shift);
}

function putU16(bytes: Uint8Array, at: number, value: number): void {
  bytes[at] = value & 0xff;
  bytes[at + 1] = value >> 8;
}

/** q5_1 has 24 bytes and stores a minimum: dmin with the opposite sign. */
function writeFiveBits({ bytes, levels, d, dmin }: Coded): void {
  putU16(bytes, 0, d);
  if (bytes.length === 24) putU16(bytes, 2, dmin ^ 0x8000);
  const first = bytes.length - 20;
  for (const [k, level] of levels.entries()) {
    put(bytes, first + (k >> 3), k & 7, level >> 4);
    put(bytes, first + 4 + (k & 15), 4 * (k >> 4), level & 15);
  }
}

function putTwoBits(bytes: Uint8Array, first: number, k: number, value: number): void {
  put(bytes, first + 32 * (k >> 7) + (k & 31), 2 * ((k >> 5) & 3), value);
}

function putNibble(bytes: Uint8Array, first: number, k: number, value: number): void {
  put(bytes, first + 32 * (k >> 6) + (k & 31), 4 * ((k >> 5) & 1), value);
}

function writeQ2K({ bytes, levels, scales, minimums, d, dmin }: Coded): void {
  for (const [group, scale] of scales.entries()) bytes[group] = scale | ((minimums[group] as number) << 4);
  for (const [k, level] of levels.entries()) putTwoBits(bytes, 16, k, level);
  putU16(bytes, 80, d);
  putU16(bytes, 82, dmin);
}

function writeQ3K({ bytes, levels, scales, d }: Coded): void {
  for (const [k, level] of levels.entries()) {
    put(bytes, k & 31, k >> 5, level >> 2);
    putTwoBits(bytes, 32, k, level & 3);
  }
  for (const [group, scale] of scales.entries()) {
    put(bytes, 96 + (group & 7), (group >> 3) * 4, (scale + 32) & 15);
    put(bytes, 104 + (group & 3), (group >> 2) * 2, (scale + 32) >> 4);
  }
  putU16(bytes, 108, d);
}

function writeScalesAndMinima({ bytes, scales, minimums, d, dmin }: Coded): void {
  putU16(bytes, 0, d);
  putU16(bytes, 2, dmin);
  for (let group = 0; group < 4; group++) {
    const [low, high] = [scales[group] as number, scales[group + 4] as number];
    const [lowMinimum, highMinimum] = [minimums[group] as number, minimums[group + 4] as number];
    bytes[4 + group] = low | ((high >> 4) << 6);
    bytes[8 + group] = lowMinimum | ((highMinimum >> 4) << 6);
    bytes[12 + group] = (high & 15) | ((highMinimum & 15) << 4);
  }
}

function writeQ4K(coded: Coded): void {
  writeScalesAndMinima(coded);
  for (const [k, level] of coded.levels.entries()) putNibble(coded.bytes, 16, k, level);
}

function writeQ5K(coded: Coded): void {
  writeScalesAndMinima(coded);
  for (const [k, level] of coded.levels.entries()) {
    put(coded.bytes, 16 + (k & 31), k >> 5, level >> 4);
    putNibble(coded.bytes, 48, k, level & 15);
  }
}

function writeQ6K({ bytes, levels, scales, d }: Coded): void {
  for (const [k, level] of levels.entries()) {
    put(bytes, 64 * (k >> 7) + (k & 63), 4 * ((k >> 6) & 1), level & 15);
    putTwoBits(bytes, 128, k, level >> 4);
  }
  for (const [group, scale] of scales.entries()) bytes[192 + group] = scale;
  putU16(bytes, 208, d);
}
