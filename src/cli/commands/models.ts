// `kvasir models`: lists, inspects, downloads and removes models.
import { createInterface } from 'node:readline/promises';
import { Command } from 'commander';
import { planRemoval, remove } from '../../weights/hub/cached-repositories.ts';
import { type HubReference, parseHubReference } from '../../weights/hub/reference.ts';
import { hubSettings } from '../../weights/hub/settings.ts';
import { pull } from '../serve/model/locate-model.ts';
import { megabytes } from '../terminal/fields.ts';
import { UsageError } from '../usage-error.ts';
import { inspect } from './models-inspect.ts';
import { listFolder, listMachine } from './models-list.ts';

const referenceHelp = 'org/name, org/name@revision, org/name:file.gguf or org/name:Q4_K_M';

interface JsonFlag {
  readonly json?: boolean;
}

export function modelsCommand(): Command {
  const models = new Command('models');
  models
    .command('pull')
    .description('Download a model from the hub, or its missing files')
    .argument('<model>', referenceHelp)
    .option('--json', 'Print one JSON object')
    .action((model: string, { json }: JsonFlag) => pullNamed(model, json === true));
  models
    .command('list')
    .description('List the models in a folder, or the embedded model and the hub cache')
    .argument('[folder]', 'Folder to search, one level deep')
    .option('--json', 'Print one JSON object')
    .action((folder: string | undefined, { json }: JsonFlag) =>
      folder === undefined ? listMachine(json === true) : listFolder(folder, json === true),
    );
  models
    .command('inspect')
    .description('Print architecture, sizes, tokenizer, files and tensors of a local model')
    .argument('<model>', `GGUF file, Hugging Face directory, or a cached ${referenceHelp}`)
    .option('--json', 'Print one JSON object')
    .action((model: string, { json }: JsonFlag) => inspect(model, json === true));
  models
    .command('remove')
    .description('Remove a model from the cache, with files that no other model uses')
    .argument('<model>', referenceHelp)
    .option('--yes', 'Do not ask for confirmation')
    .option('--json', 'Print one JSON object')
    .action((model: string, flags: JsonFlag & { yes?: boolean }) =>
      removeNamed(model, flags.yes === true, flags.json === true),
    );
  return models;
}

function referenceOf(model: string): HubReference {
  const reference = parseHubReference(model);
  if (reference === undefined) throw new UsageError(`Cannot use '${model}': write ${referenceHelp}`);
  return reference;
}

async function pullNamed(model: string, json: boolean): Promise<void> {
  const reference = referenceOf(model);
  const { path, commit, files, bytes } = await pull(reference);
  if (json) console.log(JSON.stringify({ model, revision: reference.revision, commit, path, bytes, files }));
  else console.log(path);
}

async function removeNamed(model: string, yes: boolean, json: boolean): Promise<void> {
  const { cacheFolder } = hubSettings(process.env);
  const removal = planRemoval(cacheFolder, referenceOf(model));
  const { bytes } = removal;
  const needsConsent = !yes && process.stdin.isTTY === true;
  if (needsConsent && !(await confirms(`Remove ${model}, ${megabytes(bytes)}? [y/N] `))) {
    console.log('Nothing was removed');
    return;
  }
  await remove(cacheFolder, removal);
  console.log(json ? JSON.stringify({ model, bytes }) : `Removed ${model}: ${megabytes(bytes)}`);
}

async function confirms(question: string): Promise<boolean> {
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  try {
    return /^y(es)?$/i.test((await terminal.question(question)).trim());
  } finally {
    terminal.close();
  }
}
