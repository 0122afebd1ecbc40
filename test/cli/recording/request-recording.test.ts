// A recording of requests: what its lines contain, and what they do not.
import { expect, it } from 'vitest';
import { RequestRecording, type RequestRecordingOptions } from '../../../src/cli/serve/recording/request-recording.ts';
import type { GenerationEvent, GenerationRequest, InstanceSnapshot } from '../../../src/core/protocol/ports.ts';
import type { RequestTrace } from '../../../src/core/protocol/request-trace.ts';
import { emptySnapshot } from '../../../src/runtime/snapshots/metric-snapshots.ts';
import type { StepTrace } from '../../../src/runtime/threads/thread-protocol.ts';
import type {
  RecordedInstance,
  RecordedLine,
  RecordedReport,
  RecordedStepRow,
} from '../../../src/trace/recording/recording.ts';

type Sink = (event: GenerationEvent) => void;
const [tokens, placed] = [
  Int32Array.of(5),
  { instance: 1, decodeAt: 0, fetchedTokens: 0, inline: false, candidates: [] },
];

/** A cluster of two instances whose requests the test drives. */
class FakeCluster {
  readonly sinks = new Map<string, Sink>();
  names: readonly (string | undefined)[] = [undefined, undefined];
  ended: (trace: RequestTrace) => void = () => {};
  reported: (instance: number, snapshot: InstanceSnapshot) => void = () => {};
  stepped: (instance: number, steps: readonly StepTrace[]) => void = () => {};

  submit(request: GenerationRequest, sink: Sink): void {
    this.sinks.set(request.id, sink);
  }

  onEnded(listener: (trace: RequestTrace) => void): void {
    this.ended = listener;
  }

  onSteps(listener: (instance: number, steps: readonly StepTrace[]) => void): void {
    this.stepped = listener;
  }

  onReports(listener: FakeCluster['reported']): void {
    this.reported = listener;
  }

  roles() {
    return this.names.map((_, i) => (i === 0 ? ('decode' as const) : ('prefill' as const)));
  }

  instances(): readonly InstanceSnapshot[] {
    const pages = { total: 40, used: 0, cached: 0, free: 40 };
    const base = { ...emptySnapshot, pages, blocks: { total: 20, tokens: 32 } };
    return this.names.map((name) => ({ ...base, ...(name && { name }), receivePages: { total: 8, free: 8 } }));
  }
}

function open(word: number) {
  const cluster = new FakeCluster();
  const [lines, states, steps]: [RecordedLine[], (readonly RecordedInstance[])[], RecordedStepRow[]] = [[], [], []];
  const reports: RecordedReport[] = [];
  let nowUs = 1_000_000;
  const recording = new RequestRecording({
    cluster: cluster as unknown as RequestRecordingOptions['cluster'],
    key: Uint32Array.of(word, 2, 3, 4),
    ...{ nowUs: () => nowUs, epochUs: () => 4_000_000 + nowUs },
    onSteps: (rows) => steps.push(...rows),
    onReports: (rows) => reports.push(...rows),
    onRequest: (line) => lines.push(line),
    onInstances: (_, instances) => states.push(instances),
  });
  const prompt = Int32Array.from({ length: 70 }, (_, i) => i + 1);
  const submit = (id: string, own: Partial<GenerationRequest> = {}): void => {
    recording.port.submit({ id, prompt, maxTokens: 40, priority: 0, salt: '', ...own } as GenerationRequest, () => {});
  };
  const end = (id: string, own: Partial<RequestTrace> = {}): void => {
    const trace = {
      id,
      state: 'finished',
      promptTokens: 70,
      maxTokens: 40,
      outputTokens: 30,
      priority: 0,
      batch: false,
    };
    const times = { submittedUs: 1_000_000, startedUs: 1_200_000, firstTokenUs: 1_300_000, endedUs: nowUs };
    cluster.ended({ ...trace, ...times, placements: [placed], ...own } as unknown as RequestTrace);
  };
  const pass = (us: number): void => {
    nowUs += us;
  };
  return { cluster, recording, lines, states, steps, reports, submit, end, pass };
}

it('writes times, placements and gaps, and hashes of the blocks that were computed', () => {
  const { cluster, recording, lines, states, submit, end, pass } = open(1);
  recording.observeInstances();
  expect(states).toEqual([
    [
      expect.objectContaining({ name: '0', role: 'decode', blocks: 20, receiveBlocks: 4 }),
      expect.objectContaining({ name: '1' }),
    ],
  ]);
  submit('a');
  for (let i = 0; i < 30; i++) {
    pass(i === 10 ? 50_000 : 10_000);
    cluster.sinks.get('a')?.({ kind: 'tokens', tokens, logprobs: undefined });
  }
  end('a', { tenant: 'acme', sloClass: 'chat' });
  const [{ hashIds, outputHashIds, ...line }] = lines;
  expect([hashIds.length, outputHashIds?.length]).toEqual([2, 1]);
  expect(line).toMatchObject({
    ...{ timestamp: 0, inputLength: 70, outputLength: 30, outcome: 'finished', sloClass: 'chat' },
    ...{ instance: 1, decodeInstance: 0, startedMs: 200, firstTokenMs: 300, endMs: 340, gapMsMax: 50 },
    tenant: expect.stringMatching(/^tenant-[0-9a-f]{8}$/),
  });
});

it('keys hashes: prompts are equal within a recording, and differ between recordings and salts', () => {
  const [first, second] = [open(1), open(9)];
  for (const { submit, end } of [first, second]) {
    for (const id of ['a', 'b']) submit(id);
    submit('c', { salt: 'other' });
    for (const id of ['a', 'b', 'c']) end(id, { tenant: 'acme' });
  }
  const [a, b, c] = first.lines;
  expect(a.hashIds).toEqual(b.hashIds);
  expect(a.hashIds).not.toEqual(c.hashIds);
  expect(a.hashIds).not.toEqual(second.lines[0].hashIds);
  expect(a.tenant).not.toBe(second.lines[0].tenant);
});

it('writes a refused request with its reason and the output that it asked for', () => {
  const { lines, submit, end } = open(1);
  submit('a');
  const cause = { reason: 'ttft' } as never;
  end('a', {
    state: 'refused',
    outputTokens: 0,
    end: { kind: 'failed', code: 'OVERLOADED', message: '', cause } as never,
  });
  expect(lines[0]).toMatchObject({ outcome: 'refused', reason: 'ttft', outputLength: 40 });
});

it('holds nothing of a request that the cluster never accepted, and writes nothing after the end', () => {
  const { cluster, recording, lines, submit, end } = open(1);
  submit('a');
  cluster.sinks.get('a')?.({ kind: 'failed', code: 'NOT_READY', message: '', retryAfterMs: undefined });
  end('a');
  submit('b');
  recording.close();
  end('b');
  expect(lines).toEqual([]);
});

it('numbers instances by name: a place that another instance takes has another number', () => {
  const { cluster, recording, states, lines, submit, end } = open(1);
  cluster.names = ['x', 'y'];
  recording.observeInstances();
  cluster.names = ['x', 'z'];
  recording.observeInstances();
  submit('a');
  end('a');
  expect(states.at(-1)?.map(({ name }) => name)).toEqual(['x', 'y', 'z']);
  expect(lines[0]).toMatchObject({ instance: 2, decodeInstance: 0 });
});

it('writes the first step of a request, and the first one where it decodes: those of its last attempt', () => {
  const { cluster, lines, submit, end } = open(1);
  submit('a');
  const step = (at: number, us: number, id: string): void => {
    const times = { startedUs: 5_000_000 + us, endedUs: 5_000_010 + us };
    cluster.stepped(at, [{ kind: 'step', aborted: false, ...times, rows: [[id, 0, 1]] }]);
  };
  for (const [at, us] of [
    [1, 400],
    [1, 900],
    [0, 2_000],
    [0, 3_000],
  ])
    step(at, us, 'a');
  end('a');
  expect(lines[0]).toMatchObject({ firstStepMs: 0.4, decodeStepMs: 2 });
  submit('b');
  step(1, 4_000, 'b');
  step(0, 6_000, 'b~1');
  end('b');
  expect(lines[1]).toMatchObject({ firstStepMs: 6, decodeStepMs: undefined });
});

it("writes the shape of each step from the recording's start", () => {
  const { cluster, recording, steps, lines, submit, end, pass } = open(1);
  submit('a');
  submit('c');
  pass(1_000);
  const step = { kind: 'step', aborted: false, startedUs: 5_000_400, endedUs: 5_000_900 } as const;
  cluster.stepped(0, [
    {
      ...step,
      rows: [
        ['a', 64, 6],
        ['b', 9, 1],
      ],
    },
    { ...step, aborted: true, rows: [['a', 0, 1]], received: [['c', 5_000_300]] },
    { ...step, kind: 'fetch', rows: [['a', 0, 32]] },
    { ...step, kind: 'fetch', aborted: true, rows: [['c', 0, 0]] },
  ]);
  recording.flushSteps();
  end('a');
  end('c');
  expect(lines.map((line) => [line.decodeReceivedMs, line.prefixStartMs, line.prefixMs, line.prefixMissing])).toEqual([
    [undefined, 0.4, 0.9, undefined],
    [0.3, 0.4, 0.9, true],
  ]);
  const keys = 65 + 66 + 67 + 68 + 69 + 70;
  expect(steps).toEqual([[0, 400, 500, 7, keys + 10, 1, 10, 2, 100]]);
});

it('records what instances reported of themselves and when, and what placement compared: the chosen instance first', () => {
  const { cluster, recording, reports, lines, submit, end, pass } = open(1);
  const candidate = (instance: number, queueUs: number) => ({
    ...{ instance, requests: 2, matchedTokens: 32, queueUs, prefillUs: 7.4 },
  });
  submit('a');
  pass(250);
  const links = [
    { to: 1, bytes: 9, backlogBytes: 0, bytesPerSecond: 5e8 },
    { to: 0, bytes: 0, backlogBytes: 0 },
  ];
  cluster.reported(0, { ...emptySnapshot, running: 3, stepCost: [1, 2, 3, 4, 5], links });
  recording.flushSteps();
  end('a', {
    placements: [{ ...placed, candidates: [candidate(0, 5), candidate(1, 9)] }],
  } as unknown as Partial<RequestTrace>);
  const [receivedAt] = reports;
  expect(receivedAt?.[1]).toBe(250);
  const learned = { running: 3, steps: 0, stepMsTotal: 0, stepCost: [1, 2, 3, 4, 5] };
  expect(receivedAt?.[2]).toEqual({ ...learned, links: [[lines[0]?.instance, 5e8]] });
  expect(lines[0]?.candidates).toEqual([
    [lines[0]?.instance, 2, 32, 9, 7],
    [receivedAt?.[0], 2, 32, 5, 7],
  ]);
});
