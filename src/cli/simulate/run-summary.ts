// The figures of a simulated run for people: requests, latencies, caches, and the features that were in use.
import type { Outcome } from '../../sim/report/outcome.ts';
import { bar, sparkline } from '../terminal/bars.ts';
import { counted, percent, readable, readableBytes } from '../terminal/fields.ts';
import { printList, printTable } from '../terminal/table.ts';
import type { GroupFigures } from './run-figures.ts';
import { hasSlo, type Report } from './simulated-run.ts';

type Entry = readonly [string, string];

/** @param outcome supplies the distributions */
export function printReport(report: Report, outcome: Pick<Outcome, 'ttftUs' | 'tbtUs'>): void {
  printList(requestsTitle(report), requestEntries(report));
  printTable(
    [latencyRow('TTFT', report.ttftMs, outcome.ttftUs), latencyRow('TBT', report.tbtMs, outcome.tbtUs)],
    'Latency',
  );
  printClosedLoop(report);
  printPredictions(report);
  printGroups('class', report.classes ?? {});
  printGroups('tenant', report.tenants ?? {});
  printList('Prefix cache', cacheEntries(report));
  printList('Work', workEntries(report));
  printFeatures(report);
  printList('Run', runEntries(report));
}

function requestsTitle({ requests, completed }: Report): string {
  const ends = completed === requests ? 'all completed' : `${readable(completed)} completed`;
  return `Requests: ${readable(requests)}, ${ends}`;
}

const reasons: Readonly<Record<string, string>> = {
  ttft: 'TTFT SLO',
  tbt: 'TBT SLO',
  completion: 'completion SLO',
  memory: 'memory',
  queue: 'full queue',
  length: 'too long',
  failed: 'failed',
};

function requestEntries(report: Report): readonly Entry[] {
  const { requests, completed, refused, withinSlo, retries } = report;
  const refusals = requests - completed;
  const throughput = `${readable(report.simulatedSeconds === 0 ? 0 : completed / report.simulatedSeconds)} requests/s`;
  const places = `${readable(refused.atPrefill)} before prefill, ${readable(refused.atDecode)} before decode`;
  const causes = Object.entries(refused.byReason).map(([reason, n]) => `${reasons[reason] ?? reason} ${readable(n)}`);
  return [
    ...entryIf(hasSlo(report.settings), 'within SLO', shareOf(withinSlo, requests)),
    ...(hasSlo(report.settings)
      ? [['goodput', `${readable(report.goodputRequestsPerSecond)} requests/s`] as const]
      : [['throughput', throughput] as const]),
    ...entryIf(refusals > 0, 'not served', `${readable(refusals)}: ${places}; by reason: ${causes.join(', ')}`),
    ...entryIf(report.wastedPrefillTokens > 0, 'wasted prefill', counted(report.wastedPrefillTokens, 'token')),
    ...(retries === undefined ? [] : [retryEntry(retries)]),
  ];
}

function retryEntry({ came, completed, gaveUp, waitedMsMean }: NonNullable<Report['retries']>): Entry {
  const ends = `${readable(completed)} completed, ${readable(gaveUp)} gave up`;
  return ['retries', `${readable(came)}: ${ends}; mean wait ${readable(waitedMsMean)} ms`];
}

function cacheEntries({
  hitRatioTokens,
  hitRatioBlocks,
  missReasons,
  replication,
  tiers,
  pins,
}: Report): readonly Entry[] {
  const { neverSeen, evicted, elsewhere, partial } = missReasons;
  const { blocks, onSeveral, copies, fetched, proactive } = replication;
  const tokens = tiers?.hitTokens;
  return [
    ['prompt tokens hit', ratioOf(hitRatioTokens)],
    ['prompt blocks hit', ratioOf(hitRatioBlocks)],
    ['blocks missed', figures({ 'never seen': neverSeen, evicted, 'on another instance': elsewhere, partial })],
    [
      'blocks cached',
      `${readable(blocks)}, of which ${readable(onSeveral)} on several instances; ${counted(copies, 'copy', 'copies')}`,
    ],
    ...entryIf(fetched + proactive > 0, 'blocks copied', figures({ fetched, proactive })),
    ...(tokens === undefined
      ? []
      : [['tokens hit by tier', figures({ ...tokens, 'other instance': tokens.instance, instance: 0 })] as const]),
    ...entryIf(
      pins.pinned + pins.refused > 0,
      'pinned prefixes',
      figures({ ...pins, hitTokens: 0, 'tokens hit': pins.hitTokens }),
    ),
  ];
}

function workEntries(report: Report): readonly Entry[] {
  const { bytesMoved, tiers } = report;
  const moved = {
    'remote prefixes': bytesMoved.prefix,
    'hand-off': bytesMoved.handoff,
    lending: bytesMoved.borrow,
    settlements: bytesMoved.settle,
    activations: bytesMoved.activations,
  };
  const tierBytes = tiers && {
    'loaded from host memory': tiers.bytes.loaded,
    'stored to host memory': tiers.bytes.stored,
    'read from SSD': tiers.bytes.ssdRead,
    'written to SSD': tiers.bytes.ssdWritten,
  };
  return [
    ['tokens', figures({ prefilled: report.prefillTokens, decoded: report.decodeTokens })],
    ['steps', readable(report.steps)],
    ['bytes sent', figures(moved, readableBytes)],
    ...(tierBytes === undefined ? [] : [['bytes of tiers', figures(tierBytes, readableBytes)] as const]),
    ...entryIf(report.preemptions > 0, 'preemptions', readable(report.preemptions)),
    ...entryIf(report.inlinePrefills > 0, 'inline prefills', readable(report.inlinePrefills)),
    ...entryIf(report.groupPrefills > 0, 'pipeline prefills', readable(report.groupPrefills)),
    ...entryIf(report.roleSwitches > 0, 'role switches', readable(report.roleSwitches)),
  ];
}

function printClosedLoop({ closedLoop }: Report): void {
  if (closedLoop === undefined) return;
  const { clients, requests, seconds, outputTokensPerSecond, requestsPerSecond, ttftMs } = closedLoop;
  printList(`Closed loop of ${counted(clients, 'client')}, all busy`, [
    ['requests', `${readable(requests)} in ${readable(seconds)} s`],
    ['throughput', `${readable(outputTokensPerSecond)} tokens/s, ${readable(requestsPerSecond)} requests/s`],
    ['TTFT', `p50 ${readable(ttftMs.p50)} ms, p99 ${readable(ttftMs.p99)} ms`],
  ]);
}

/** Only requests that have an SLO are predicted. */
function printPredictions({ predictions, poolLoads }: Report): void {
  const { ttft, tbt, outputTokens } = predictions;
  if (ttft.requests === 0) return;
  const times = ({ predictedMsMean, actualMsMean, errorMsP50, errorMsP90 }: typeof ttft) => ({
    ...{ predictedMean: predictedMsMean, actualMean: actualMsMean, errorP50: errorMsP50, errorP90: errorMsP90 },
  });
  const { requests: _, ...counts } = outputTokens;
  printTable(
    [
      { '': 'TTFT (ms)', ...times(ttft) },
      { '': 'TBT (ms)', ...times(tbt) },
      { '': 'output tokens', ...counts },
    ],
    `Predictions of ${counted(ttft.requests, 'request')}`,
  );
  const { prefillMean, decodeMean, differenceDeviation } = poolLoads;
  printList('Mean load', [
    ['prefill pool', `${bar(prefillMean)} ${percent(prefillMean)}`],
    ['decode pool', `${bar(decodeMean)} ${percent(decodeMean)}`],
    ['deviation of their difference', percent(differenceDeviation)],
  ]);
}

function printFeatures({ batch, migration, sparse, lending, faults, handlers = {} }: Report): void {
  if (batch.requests > 0) {
    const { completionMs, ...jobs } = batch;
    printTable([{ ...jobs, completionMsMean: completionMs.mean }], 'Batch jobs');
  }
  if (migration !== undefined) printTable([migration], 'Migration to standby instances');
  if (sparse !== undefined) printList('Sparse KV', sparseEntries(sparse));
  if (lending !== undefined) printList('Lending', lendingEntries(lending));
  if (faults === undefined) return;
  printList('Injected faults', entriesOf(faults));
  printList('Fault handlers that ran', entriesOf(handlers));
}

function sparseEntries(sparse: NonNullable<Report['sparse']>): readonly Entry[] {
  const { selections, promptTokensMean, keptTokensMean, pages, fullPages, pagesByLayer } = sparse;
  return [
    ['selections', `${readable(selections)}, ${readable(sparse.selectionMs)} ms in all`],
    ['tokens kept', `${readable(keptTokensMean)} of ${readable(promptTokensMean)} in a sparse layer, on average`],
    ['pages of a sequence', `${readable(pages)} of ${readable(fullPages)}`],
    ['pages by layer', runLengths(pagesByLayer)],
    ['time of a selection', `${readable(sparse.selectionMsMean)} ms`],
    ['read by decode rows', `${readable(100 * sparse.readShare)} % of the KV of their contexts`],
  ];
}

/** '3 x 125, 29 x 32' */
function runLengths(values: readonly number[]): string {
  const runs: { readonly value: number; readonly count: number }[] = [];
  for (const value of values) {
    const last = runs.at(-1);
    if (last?.value === value) runs[runs.length - 1] = { value, count: last.count + 1 };
    else runs.push({ value, count: 1 });
  }
  return runs.map(({ value, count }) => (count === 1 ? String(value) : `${count} x ${value}`)).join(', ');
}

function lendingEntries(lending: NonNullable<Report['lending']>): readonly Entry[] {
  const { movedBlocks, hostBlocks, settledBlocks, vacatedBlocks, lostBlocks } = lending;
  return [
    ['loans', figures({ granted: lending.loans, refused: lending.refusals, recalled: lending.recalls })],
    [
      'blocks',
      figures({
        lent: movedBlocks,
        'of them in host memory': hostBlocks,
        'moved back': vacatedBlocks,
        lost: lostBlocks,
      }),
    ],
    ['settlements', `${readable(lending.settlements)}, which returned ${counted(settledBlocks, 'block')}`],
    [
      'remote attention',
      `${counted(lending.queries, 'query', 'queries')}, ${readableBytes(lending.queryBytes)} of rows, ${readableBytes(lending.keyBytes)} of keys`,
    ],
    ['bytes per output token', readableBytes(lending.remoteBytesPerToken)],
    ['waits for memory', `${readable(lending.stalls)}, ${readable(lending.stallMs)} ms in all`],
  ];
}

function printGroups(what: string, groups: Readonly<Record<string, GroupFigures>>): void {
  const rows = Object.entries(groups).map(([name, { ttftMs, tbtMs, late, inputTokens, outputTokens, ...counts }]) => ({
    [what]: name,
    ...counts,
    ...{ lateTtft: late.ttft, lateTbt: late.tbt, lateCompletion: late.completion },
    ...{ ttftMsP50: ttftMs.p50, ttftMsP99: ttftMs.p99, tbtMsP99: tbtMs.p99, inputTokens, outputTokens },
  }));
  if (rows.length > 0) printTable(rows, `By ${what}`);
}

function runEntries({ simulatedSeconds, wallSeconds, pricePerHour, seed, stateHash }: Report): readonly Entry[] {
  return [
    ['simulated time', `${readable(simulatedSeconds)} s in ${wallSeconds.toFixed(2)} s`],
    ...(pricePerHour === undefined ? [] : [['price', `${pricePerHour.toFixed(2)} per hour`] as const]),
    ['seed', String(seed)],
    ['state hash', stateHash],
  ];
}

const sparkBins = 24;

function latencyRow(name: string, ms: Report['ttftMs'], histogram: Outcome['ttftUs']) {
  const rounded = Object.entries(ms).map(([field, value]) => [`${field}Ms`, Number(value.toFixed(1))]);
  const bins = histogram.bins(sparkBins).map(({ count }) => count);
  return { '': name, ...Object.fromEntries(rounded), 'distribution (log scale)': sparkline(bins) };
}

function entryIf(isShown: boolean, label: string, text: string): readonly Entry[] {
  return isShown ? [[label, text]] : [];
}

function shareOf(part: number, all: number): string {
  const share = all === 0 ? 0 : part / all;
  return `${bar(share)} ${percent(share)}: ${readable(part)} of ${readable(all)}`;
}

function ratioOf(share: number): string {
  return `${bar(share)} ${percent(share)}`;
}

/** 'new 12, evicted 3': those that are not 0. */
function figures(values: Readonly<Record<string, number>>, show: (value: number) => string = readable): string {
  const parts = Object.entries(values).flatMap(([name, value]) => (value === 0 ? [] : [`${name} ${show(value)}`]));
  return parts.length === 0 ? 'none' : parts.join(', ');
}

function entriesOf(counts: Readonly<Record<string, number>>): readonly Entry[] {
  return Object.entries(counts).map(([name, count]) => [name, readable(count)]);
}
