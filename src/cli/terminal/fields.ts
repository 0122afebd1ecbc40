// Machine-readable field names in words and units: `ttftMsP99` reads "TTFT p99" in ms.

export interface FieldText {
  readonly label: string;
  /** Empty for a field without unit, and for bytes: their unit depends on the value. */
  readonly unit: string;
  readonly isBytes: boolean;
}

const units: Readonly<Record<string, string>> = {
  ms: 'ms',
  us: 'µs',
  seconds: 's',
  bytes: '',
  percent: '%',
  gb: 'GB',
  gbs: 'GB/s',
  kib: 'KiB',
  gflop: 'GFLOP',
  mb: 'MB',
};

/** What a field measures when its name is only a unit. */
const bareLabels: Readonly<Record<string, string>> = { gb: 'bandwidth', gflop: 'arithmetic' };

const spellings: Readonly<Record<string, string>> = {
  ttft: 'TTFT',
  tbt: 'TBT',
  tpot: 'TPOT',
  slo: 'SLO',
  kv: 'KV',
  ssd: 'SSD',
  isa: 'instruction set',
  tp: 'TP',
  mfu: 'MFU',
  mbu: 'MBU',
  kl: 'KL',
  http: 'HTTP',
};

export function fieldText(name: string): FieldText {
  if (/[^\w]/.test(name)) return { label: name, unit: '', isBytes: false };
  const words = name
    .replace(/(KiB|GBs)/, (unit) => ` ${unit.toLowerCase()}`)
    .replace(/([a-z\d])([A-Z])/g, '$1 $2')
    .toLowerCase()
    .replace(/ per second\b/, '/s')
    .replace(/ per (\w+)/, '/$1')
    .split(' ');
  const place = words.findIndex((word) => Object.hasOwn(units, word.split('/')[0]) && !word.startsWith('bytes/'));
  const [base = '', per] = words[place]?.split('/') ?? [];
  const unit = place < 0 ? '' : `${units[base]}${per === undefined ? '' : `/${per}`}`;
  const rest = words.filter((word, i) => i !== place || word === 'bytes').map((word) => spellings[word] ?? word);
  const label = rest.length === 0 ? (bareLabels[base] ?? 'time') : rest.join(' ');
  return { label: label === '' ? name : label, unit, isBytes: base === 'bytes' && per === undefined };
}

/** With thousands separators; a value that is not whole has four significant digits. */
export function readable(value: number): string {
  if (!Number.isFinite(value)) return '-';
  const rounded = Number.isInteger(value) ? value : Number(value.toPrecision(Math.abs(value) >= 1e4 ? 6 : 4));
  const text = rounded.toLocaleString('en', { maximumFractionDigits: Math.abs(rounded) >= 1e4 ? 0 : 20 });
  return text;
}

const byteScales = [
  [1e15, 'PB'],
  [1e12, 'TB'],
  [1e9, 'GB'],
  [1e6, 'MB'],
  [1e3, 'kB'],
] as const;

/** 12,300,000 bytes read "12.3 MB". */
export function readableBytes(bytes: number): string {
  const [scale, unit] = byteScales.find(([least]) => Math.abs(bytes) >= least) ?? [1, 'bytes'];
  return `${scale === 1 ? readable(bytes) : (bytes / scale).toFixed(1)} ${unit}`;
}

export function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** Rounds down: 98.996 % is not 99 %. */
export function percent(share: number): string {
  return `${Math.floor(share * 1e4 + 1e-6) / 100} %`;
}

/** "1 request", "2,000 requests". */
export function counted(count: number, noun: string, plural = `${noun}s`): string {
  return `${readable(count)} ${count === 1 ? noun : plural}`;
}
