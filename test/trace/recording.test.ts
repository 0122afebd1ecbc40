// Recordings of a server: lines, their order, and what is left out.
import { expect, it } from 'vitest';
import { TraceParser } from '../../src/trace/parser.ts';
import { engineBlockTokens, RecordingReader } from '../../src/trace/recording/reader.ts';
import { type RecordedLine, type RecordingHeader, recordingLine } from '../../src/trace/recording/recording.ts';
import { withoutUnreported } from '../../src/trace/recording/reported-instances.ts';
import type { TraceRequest } from '../../src/trace/request.ts';

const header: RecordingHeader = {
  ...{ recording: 1, timeUnit: 'ms', started: '2026-01-01T00:00:00Z', model: 'toy', blockTokens: 32 },
  ...{ kvTokenBytes: 64, layers: 2, heads: 2, headDim: 8, settings: { queue: 4, sloClasses: { chatFast: {} } } },
};

function line(timestamp: number, own: Partial<RecordedLine> = {}): RecordedLine {
  const ended = { outcome: 'finished', maxTokens: 8, attempts: 1, instance: 0, decodeInstance: 0, endMs: 9 } as const;
  return { timestamp, inputLength: 70, outputLength: 2, hashIds: [2 ** 52, 7], ...ended, ...own };
}

function parsed(text: string, blockTokens = 32): { requests: readonly TraceRequest[]; parser: TraceParser } {
  const parser = new TraceParser({ blockTokens });
  const requests: TraceRequest[] = [];
  parser.push(text, requests);
  parser.end(requests);
  return { requests, parser };
}

const textOf = (...lines: readonly RecordedLine[]): string =>
  [header, ...lines].map((one) => `${recordingLine(one)}\n`).join('');

it('reads requests by arrival, though lines are in the order of their ends', () => {
  const { requests, parser } = parsed(textOf(line(20, { tenant: 'tenant-1', priority: 2 }), line(10.5)));
  expect(requests.map(({ index, arrivalUs, tenant }) => [index, arrivalUs, tenant])).toEqual([
    [0, 10_500, undefined],
    [1, 20_000, 'tenant-1'],
  ]);
  expect(parser.source).toEqual({ format: 'recording of kvasir serve', timeUnit: 'ms', failedRows: 0 });
});

it('names equal hashes equally, in prompts and outputs, and partial blocks by their own', () => {
  const first = line(0, { inputLength: 70, outputLength: 60, hashIds: [11, 12], outputHashIds: [13, 14] });
  const next = line(1, { inputLength: 140, hashIds: [11, 12, 13, 14] });
  const [{ requests }, large] = [parsed(textOf(first, next)), parsed(textOf(first, next), 64)];
  const [a, b] = requests;
  expect(a.blocks.length).toBe(3);
  expect([...b.blocks.slice(0, 4)]).toEqual([...a.blocks.slice(0, 2), ...(a.outputBlocks ?? [])]);
  expect(a.blocks[2]).not.toBe(b.blocks[2]);
  expect(large.requests[1].blocks[0]).toBe(large.requests[0].blocks[0]);
  expect(large.requests[1].blocks[1]).toBe(large.requests[0].outputBlocks?.[0]);
});

it('leaves out a last line that was not written to its end', () => {
  const { requests, parser } = parsed(`${textOf(line(1))}{"timestamp":5,"inp`);
  expect(requests.length).toBe(1);
  expect(parser.source?.isTorn).toBe(true);
});

it('returns settings as written, instances in their first role, and steps by time without overlap', () => {
  const reader = new RecordingReader(recordingLine(header), 1);
  const instance = { name: 'a', role: 'prefill', blocks: 8, stepCost: [1, 2, 3, 4, 5] } as const;
  const steps = [
    [0, 300, 50, 1, 9, 1, 9, 1, 7],
    [0, 100, 150, 2, 3, 0, 0, 1, 7],
    [0, 200, 60, 1, 9, 1, 9, 1, 7],
  ] as const;
  for (const one of [{ atMs: 1, instances: [instance] }, { steps }, { omitted: 3 }]) reader.take(recordingLine(one), 2);
  reader.take(recordingLine({ atMs: 2, instances: [{ ...instance, role: 'decode', blocks: 9 }] }), 3);
  const { header: read, instances, steps: own, omitted } = reader.end();
  expect(read).toEqual(header);
  expect(instances).toEqual([{ ...instance, blocks: 9 }]);
  expect(own[0].map(({ startedUs }) => startedUs)).toEqual([100, 300]);
  expect(omitted).toBe(3);
});

it.each([
  [{ ...line(1), hashIds: [1, 2, 3] }, 'line 2: hash_ids has 3 hashes: at most 2 expected'],
  [{ ...line(1), hashIds: [-1] }, 'line 2: hash_ids[0] is -1'],
  [{ ...line(1), endMs: -4 }, 'line 2: end_ms is -4'],
  [{ ...line(1), timestamp: -1 }, 'line 2: timestamp is -1'],
  [{ ...line(1), outcome: 'gone' as 'failed' }, 'line 2: outcome is "gone"'],
])('names an invalid member and its value: %j', (wrong, message) => {
  expect(() => parsed(textOf(wrong))).toThrow(message);
});

it('refuses other versions, and blocks that do not divide those of the run', () => {
  expect(() => parsed(`${recordingLine({ ...header, recording: 2 })}\n`)).toThrow('recording is 2');
  expect(() => parsed(textOf(line(1)), 48)).toThrow('use --block-tokens 32 or a multiple, not 48');
});

it.each([
  [[-1, 100, 5, 1, 9, 1, 9, 1], 'line 2: instance of steps[0] is -1'],
  [[2 ** 40, 100, 5, 1, 9, 1, 9, 1], 'line 2: instance of steps[0] is 1099511627776: a number below'],
  [[0, 100, -5, 1, 9, 1, 9, 1], 'line 2: us of steps[0] is -5'],
  [[0, 100, 4e9, 1, 9, 1, 9, 1], 'line 2: us of steps[0] is 4000000000: at most 3600000000'],
  [[0, 100, 5, 1, 9, 1, -9, 1], 'line 2: decodeKeys of steps[0] is -9'],
])('refuses the step %j', (step, message) => {
  const reader = new RecordingReader(recordingLine(header), 1);
  expect(() => reader.take(JSON.stringify({ steps: [step] }), 2)).toThrow(message);
});

function recordingOf(lines: readonly RecordedLine[]) {
  const reader = new RecordingReader(recordingLine(header), 1);
  const instances = [{ name: 'a' }, { name: 'b', blocks: 8 }].map((each) => ({ ...each, role: 'mixed' as const }));
  const steps = [[1, 100, 5, 1, 9, 1, 9, 1, 7] as const];
  for (const one of [{ atMs: 1, instances }, { steps }, ...lines]) reader.take(recordingLine(one), 2);
  return reader.end();
}

it('returns when each instance reported itself, by time, and what placement compared', () => {
  const reader = new RecordingReader(recordingLine(header), 1);
  const instance = { role: 'mixed', blocks: 8 } as const;
  reader.take(
    recordingLine({
      atMs: 0,
      instances: [
        { ...instance, name: 'a' },
        { ...instance, name: 'b' },
      ],
    }),
    2,
  );
  reader.take(
    recordingLine({
      reports: [
        [1, 900],
        [1, 400, { stepCost: [1, 2, 3, 4, 5], running: 1, steps: 7, stepMsTotal: 9.5, links: [[0, 2e9]] }],
      ],
    }),
    3,
  );
  reader.take(recordingLine(line(5, { candidates: [[1, 2, 32, 50, 70]] })), 4);
  const { reports, requests } = reader.end();
  const state = { stepCost: [1, 2, 3, 4, 5], running: 1, steps: 7, stepMsTotal: 9.5, links: [[0, 2e9]] };
  expect(reports).toEqual([
    [],
    [
      { receivedUs: 400, state },
      { receivedUs: 900, state: undefined },
    ],
  ]);
  expect(requests[0]?.recorded.candidates).toEqual([[1, 2, 32, 50, 70]]);
  expect(() => reader.take('{"reports":[[0,-1]]}', 5)).toThrow('line 5: reports[0] is [0,-1]');
  const partial = '{"reports":[[0,1,{"running":1,"steps":-2,"step_ms_total":0}]]}';
  expect(() => reader.take(partial, 5)).toThrow('line 5: state.steps of reports[0] is -2');
  const wrong = recordingLine(line(6, { candidates: [[1, 2, 32, -50, 70]] }));
  expect(() => reader.take(wrong, 6)).toThrow('line 6: candidates is');
});

it('keeps the hashes of a request in its blocks alone', () => {
  const [{ request, recorded }] = recordingOf([line(1)]).requests;
  expect(request.blocks.length).toBe(3);
  expect(Object.keys(recorded).filter((name) => /hash/i.test(name))).toEqual([]);
});

it('takes the block size of engines that reported their memory', () => {
  const recording = recordingOf([]);
  const [away, here] = recording.instances;
  const sizeOf = (...instances: typeof recording.instances) => engineBlockTokens({ ...recording, instances });
  expect(sizeOf(away, { ...here, engineBlockTokens: 64 })).toBe(64);
  expect(sizeOf({ ...here, engineBlockTokens: 32 }, { ...here, engineBlockTokens: 64 })).toBeUndefined();
});

it('leaves out an instance that reported no memory, unless a request was there', () => {
  const away = line(1, { instance: 1, decodeInstance: 1, group: [1] });
  const { instances, steps, requests } = withoutUnreported(recordingOf([away]));
  expect([instances.map(({ name }) => name), steps.map(({ length }) => length)]).toEqual([['b'], [1]]);
  expect(requests[0].recorded).toMatchObject({ instance: 0, decodeInstance: 0, group: [0] });
  const needed = recordingOf([away, line(2, { instance: 1, decodeInstance: 1, fetchedFrom: 0 })]);
  expect(withoutUnreported(needed)).toBe(needed);
});
