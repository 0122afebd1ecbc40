// `kvasir bench overload`: admission policies by goodput within the SLO of each class, between processes.
import { Command } from 'commander';
import { z } from 'zod';
import { type Bounds, benchOverload, classNames, type OverloadReport } from '../../../bench/overload.ts';
import { type AdmissionKind, admissionKinds } from '../../../core/router/admission/admission-policy.ts';
import { openModel } from '../../../weights/open-model.ts';
import { readOptions } from '../../options/options.ts';
import { locateModel } from '../../serve/model/locate-model.ts';
import { printList, printTable } from '../../terminal/table.ts';
import { count, list, progress } from '../options.ts';
import { ProcessCluster } from './process-cluster.ts';

const positive = (usual: number) => z.coerce.number().positive().default(usual);

const schema = z.object({
  model: z.string().optional(),
  policies: list(z.enum(admissionKinds), admissionKinds),
  prefill: count(1),
  decode: count(1),
  threads: count(1),
  chat: z
    .string()
    .regex(/^\d+,\d+$/, 'write PROMPT,OUTPUT tokens')
    .default('64,24'),
  report: z
    .string()
    .regex(/^\d+,\d+$/, 'write PROMPT,OUTPUT tokens')
    .default('1024,24'),
  chatShare: z.coerce.number().gt(0).lt(1).default(0.25),
  overload: positive(2),
  ttftFactor: positive(8),
  tbtFactor: positive(3),
  seconds: positive(20),
  seed: z.coerce.number().int().min(0).default(1),
});

type Options = z.infer<typeof schema>;

/** Accepted requests at once: the admission policy refuses, not the queue. */
const queue = 4096;

export function overloadCommand(): Command {
  return new Command('overload')
    .option('--model <path>', 'Load this model (default: the embedded kvasir-tiny)')
    .option('--policies <list>', `Compare these admission policies (default: ${admissionKinds.join(',')})`)
    .option('--prefill <n>', 'Run this number of prefill processes (default: 1)')
    .option('--decode <n>', 'Run this number of decode processes (default: 1)')
    .option('--threads <n>', 'Give each instance this number of threads (default: 1)')
    .option('--chat <tokens>', 'Send chats with so many prompt and output tokens, at priority 1 (default: 64,24)')
    .option('--report <tokens>', 'Send reports with so many, at priority 0 (default: 1024,24)')
    .option('--chat-share <share>', 'Let chats be this share of the prefill work (default: 0.25)')
    .option('--overload <x>', 'Send this multiple of the prefill work that the prefill processes compute (default: 2)')
    .option('--ttft-factor <x>', 'Bound TTFT to this multiple of that of a request alone (default: 8)')
    .option('--tbt-factor <x>', 'Bound TBT to this multiple of that of a request alone (default: 3)')
    .option('--seconds <n>', 'Send requests for this time with each policy (default: 20)')
    .option('--seed <n>', 'Seed the arrivals (default: 1)')
    .option('--json', 'Print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { policies, chat, report, chatShare, ...options } = readOptions(schema, flags);
      const results = await benchOverload({
        ...options,
        policies,
        classes: {
          chat: { ...lengthsOf(chat), priority: 1, share: chatShare },
          report: { ...lengthsOf(report), priority: 0, share: 1 - chatShare },
        },
        vocabSize: await vocabSizeOf(options.model),
        start: (policy, bounds) => start(options, policy, bounds),
        onProgress: progress,
      });
      if (json === true) console.log(JSON.stringify(results));
      else show(results);
    });
}

function lengthsOf(text: string) {
  const [promptTokens = 0, outputTokens = 0] = text.split(',').map(Number);
  return { promptTokens, outputTokens };
}

async function vocabSizeOf(model: string | undefined): Promise<number> {
  const files = openModel((await locateModel(model)).path);
  try {
    return files.config.vocabSize;
  } finally {
    files.close();
  }
}

async function start(
  { prefill, decode, threads, model }: Pick<Options, 'prefill' | 'decode' | 'threads' | 'model'>,
  policy: AdmissionKind,
  bounds: Bounds | undefined,
) {
  const roles = [
    ...Array.from({ length: prefill }, () => 'prefill' as const),
    ...Array.from({ length: decode }, () => 'decode' as const),
  ];
  const classes = bounds && classNames.map((name) => `${name}=${bounds[name].ttftMs}ms/${bounds[name].tbtMs}ms`);
  const flags = classes === undefined ? [] : ['--admission', policy, '--slo-classes', classes.join(',')];
  const forecast = policy === 'predictive' ? ['--forecast', 'mean'] : [];
  const cluster = await ProcessCluster.start({
    ...{ instances: roles.length, roles, threads, model, queue, faults: [] },
    serveFlags: [...flags, ...forecast],
  });
  const [url = ''] = cluster.urls;
  return { url, prefillInstances: prefill, close: () => cluster.close() };
}

function show({ alone, bounds, requestsPerSecond, policies }: OverloadReport<AdmissionKind>): void {
  printList(
    'Load',
    classNames.map((name) => [
      name,
      `${requestsPerSecond[name]} requests/s; TTFT ${alone[name].ttftMs} ms alone, at most ${bounds[name].ttftMs}; TBT ${alone[name].tbtMs} ms alone, at most ${bounds[name].tbtMs}`,
    ]),
  );
  const rows = policies.flatMap((figures) =>
    classNames.map((name) => ({ policy: figures.policy, class: name, ...figures[name] })),
  );
  printTable(rows, 'Requests by admission policy');
  const wasted = policies.map(({ policy, wastedPromptTokens, latePromptTokens }) => {
    return { policy, 'refused at decode': wastedPromptTokens, late: latePromptTokens };
  });
  printTable(wasted, 'Prompt tokens computed in vain');
}
