// `kvasir models`: what is there, and what is inside a file.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { openModel } from '../../weights/open-model.ts';
import type { ModelFiles } from '../../weights/types.ts';
import { packageFile } from '../package-root.ts';
import { UsageError } from '../usage-error.ts';

export function modelsCommand(): Command {
  const models = new Command('models').description('list and inspect models');
  models
    .command('list')
    .description('models in a folder (default: those that ship with kvasir)')
    .argument('[folder]', 'folder to look in, one level deep', packageFile('models'))
    .option('--json', 'print one JSON object')
    .action((folder: string, { json }: { json?: boolean }) => list(folder, json === true));
  models
    .command('inspect')
    .description('configuration, tokenizer and tensors of a model')
    .argument('<path>', 'GGUF file or Hugging Face directory')
    .option('--json', 'print one JSON object')
    .action((path: string, { json }: { json?: boolean }) => inspect(path, json === true));
  return models;
}

interface ListedModel {
  readonly path: string;
  readonly architecture?: string;
  readonly context?: number;
  readonly bytes?: number;
  readonly error?: string;
}

function list(folder: string, json: boolean): void {
  if (!existsSync(folder)) throw new UsageError(`Cannot list models: no folder ${folder}`);
  const found = candidates(folder).map(describe);
  if (json) {
    console.log(JSON.stringify({ models: found }));
    return;
  }
  for (const model of found) {
    const facts = model.error ?? `${model.architecture}, context ${model.context}, ${megabytes(model.bytes ?? 0)}`;
    console.log(`${model.path}: ${facts}`);
  }
  if (found.length === 0) console.log(`No models in ${folder}`);
}

function candidates(folder: string): string[] {
  const inside = readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (!entry.isDirectory()) return [path];
    return [path, ...readdirSync(path).map((name) => join(path, name))];
  });
  return [folder, ...inside].filter((path) =>
    statSync(path).isDirectory() ? existsSync(join(path, 'config.json')) : path.endsWith('.gguf'),
  );
}

function describe(path: string): ListedModel {
  try {
    return withModel(path, (files) => ({
      path,
      architecture: files.config.architecture,
      context: files.config.maxPositions,
      bytes: tensorBytes(files),
    }));
  } catch (error) {
    return { path, error: error instanceof Error ? error.message : String(error) };
  }
}

function inspect(path: string, json: boolean): void {
  const report = withModel(path, (files) => {
    const tensors = [...files.tensors()].map(({ name, type, shape }) => ({ name, type, shape }));
    const tokenizer = files.tokenizer?.kind === 'gguf' ? files.tokenizer.data.model : files.tokenizer?.kind;
    return {
      path,
      kind: files.kind,
      bytes: tensorBytes(files),
      config: files.config,
      tokenizer,
      defaults: files.generationDefaults,
      tensors,
    };
  });
  if (json) {
    console.log(JSON.stringify(report));
    return;
  }
  console.log(`${path}: ${report.kind}, ${megabytes(report.bytes)}, tokenizer ${report.tokenizer ?? 'none'}`);
  for (const [name, value] of Object.entries({ ...report.config, ...report.defaults })) {
    if (value !== undefined) console.log(`  ${name}: ${typeof value === 'object' ? JSON.stringify(value) : value}`);
  }
  for (const { name, type, shape } of report.tensors) console.log(`  ${name} ${type} [${shape.join(', ')}]`);
}

function withModel<T>(path: string, read: (files: ModelFiles) => T): T {
  const files = openModel(path);
  try {
    return read(files);
  } finally {
    files.close();
  }
}

function tensorBytes(files: ModelFiles): number {
  let bytes = 0;
  for (const tensor of files.tensors()) bytes += tensor.byteLength;
  return bytes;
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
