// `kvasir bench early-start`: the first token behind a fetched prefix, ahead of use against waiting for all of it.
import { Command } from 'commander';
import { benchEarlyStart } from '../../bench/early-start.ts';
import { pageTokens } from '../../util/step.ts';
import { openModel } from '../../weights/open-model.ts';
import { addFormFlags, readOptions } from '../options/options.ts';
import { locateModel } from '../serve/model/locate-model.ts';
import { instanceSettings } from '../serve/open-serving.ts';
import { printTable } from '../simulate/table.ts';
import { benchModelSchema, count, progress } from './options.ts';

const schema = benchModelSchema.extend({
  threads: count(1),
  prefix: count(384).transform((tokens) => Math.max(1, Math.floor(tokens / pageTokens)) * pageTokens),
  rest: count(100),
  repeats: count(3),
});

export function earlyStartCommand(): Command {
  return addFormFlags(new Command('early-start'))
    .description('time to the first token behind a prefix of another instance: ahead of use, or once all of it is here')
    .option('--threads <n>', 'compute threads of each instance (default: 1)')
    .option('--prefix <tokens>', 'that are fetched, over tcp (default: 384)')
    .option('--rest <tokens>', 'that are computed behind them (default: 100)')
    .option('--repeats <n>', 'prefixes that are timed, after one that is not (default: 3)')
    .option('--json', 'print one JSON object')
    .action(async ({ json, ...flags }: { json?: boolean } & Record<string, unknown>) => {
      const { prefix, rest, repeats, ...own } = readOptions(schema, flags);
      const { path } = await locateModel(own.model);
      const files = openModel(path);
      const vocabSize = Math.min(files.config.vocabSize, 20_000);
      files.close();
      const context = prefix + rest + 2;
      const options = { ...own, context, eviction: 'lru' } as const;
      const settings = instanceSettings(options, { role: 'mixed', threads: own.threads }, path, context, 3);
      const report = await benchEarlyStart({
        entry: new URL('../serve/instance-worker.js', import.meta.url),
        settings: [settings, settings, { ...settings, awaitsPrefixes: true }],
        ...{ vocabSize, blockTokens: pageTokens, prefix, rest, repeats, log: progress },
      });
      if (json === true) console.log(JSON.stringify({ threads: own.threads, ...report }));
      else printTable([{ ...report }]);
    });
}
