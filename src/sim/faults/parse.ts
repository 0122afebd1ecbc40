// Faults as text: `crash:instance=2,at=60s,for=30s`, `loss:ratio=0.01`.
import { type Fault, type FaultKind, faultKinds } from './faults.ts';

const units: Readonly<Record<string, number>> = { ms: 1_000, s: 1_000_000, m: 60_000_000, h: 3_600_000_000 };

/** What each kind may say, and what it has to. */
const fields: Readonly<Record<FaultKind, { readonly needs: readonly string[]; readonly may: readonly string[] }>> = {
  loss: { needs: ['ratio'], may: [] },
  duplication: { needs: ['ratio'], may: [] },
  delay: { needs: ['ratio', 'by'], may: [] },
  crash: { needs: [], may: ['instance', 'at', 'every', 'for'] },
  partition: { needs: ['for'], may: ['instance', 'at', 'every'] },
  slow: { needs: ['for'], may: ['instance', 'at', 'every', 'factor'] },
  conductor: { needs: [], may: ['at', 'every'] },
  gmanager: { needs: [], may: ['at', 'every'] },
};

/** @throws Error that says in one line what is wrong */
export function parseFault(text: string): Fault {
  const [name, rest = ''] = splitOnce(text, ':');
  const kind = faultKinds.find((known) => known === name);
  if (kind === undefined) throw new Error(`Cannot inject ${name}: there are ${faultKinds.join(', ')}: ${text}`);
  const { needs, may } = fields[kind];
  const said = new Map(rest === '' ? [] : rest.split(',').map((field) => splitOnce(field, '=')));
  for (const field of said.keys())
    if (!needs.includes(field) && !may.includes(field))
      throw new Error(`Cannot inject ${kind}: ${field} is none of ${[...needs, ...may].join(', ')}: ${text}`);
  for (const field of needs) if (!said.has(field)) throw new Error(`Cannot inject ${kind}: it needs ${field}: ${text}`);
  if (may.includes('at') && said.has('at') === said.has('every'))
    throw new Error(`Cannot inject ${kind}: it needs either at (once) or every (again and again): ${text}`);
  const time = (field: string) => (said.has(field) ? timeUs(said.get(field) ?? '', text) : undefined);
  return {
    kind,
    ratio: said.has('ratio') ? numberOf(said.get('ratio') ?? '', 0, 1, text) : 0,
    byUs: time('by') ?? 0,
    atUs: time('at'),
    everyUs: time('every'),
    forUs: time('for') ?? Number.POSITIVE_INFINITY,
    instances: said
      .get('instance')
      ?.split('+')
      .map((one) => numberOf(one, 0, 65_535, text)),
    factor: said.has('factor') ? numberOf(said.get('factor') ?? '', 1, 1_000_000, text) : 4,
  };
}

function splitOnce(text: string, mark: string): [string, string | undefined] {
  const at = text.indexOf(mark);
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)];
}

function timeUs(value: string, text: string): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h)$/.exec(value) ?? [];
  if (digits === undefined || unit === undefined)
    throw new Error(`Cannot inject a fault: write times as 200ms, 60s, 5m or 1h: ${value}: ${text}`);
  return Math.round(Number(digits) * (units[unit] ?? 1));
}

function numberOf(value: string, least: number, most: number, text: string): number {
  const number = Number(value);
  if (value === '' || !(number >= least && number <= most))
    throw new Error(`Cannot inject a fault: ${value} is no number from ${least} to ${most}: ${text}`);
  return number;
}
