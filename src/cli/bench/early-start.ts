// `kvasir bench early-start`: time to first token behind a fetched prefix, started during the fetch or after it.
import { Command } from 'commander';
import { benchEarlyStart } from '../../bench/early-start.ts';
import { pageTokens } from '../../util/step.ts';
import { openModel } from '../../weights/open-model.ts';
import { addFormFlags, readOptions } from '../options/options.ts';
import { locateModel } from '../serve/model/locate-model.ts';
import { instanceSettings } from '../serve/open-serving.ts';
import { printTable } from '../terminal/table.ts';
import { benchModelSchema, count, progress } from './options.ts';

const schema = benchModelSchema.extend({
  threads: count(1),
  prefix: count(384).transform((tokens) => Math.max(1, Math.floor(tokens / pageTokens)) * pageTokens),
  rest: count(100),
  repeats: count(3),
});

export function earlyStartCommand(): Command {
  return addFormFlags(new Command('early-start'))
    .option('--threads <n>', 'Compute with this number of threads on each instance (default: 1)')
    .option('--prefix <tokens>', 'Fetch a prefix of this length over TCP (default: 384)')
    .option('--rest <tokens>', 'Compute this number of tokens behind the prefix (default: 100)')
    .option('--repeats <n>', 'Time this number of prefixes, after one to warm up (default: 3)')
    .option('--json', 'Print one JSON object')
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
        settings: [settings, settings, { ...settings, waitsForPrefixes: true }],
        ...{ vocabSize, blockTokens: pageTokens, prefix, rest, repeats, log: progress },
      });
      if (json === true) console.log(JSON.stringify({ threads: own.threads, ...report }));
      else printTable([report], 'Time to first token behind a fetched prefix');
    });
}
