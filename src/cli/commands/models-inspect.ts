// `kvasir models inspect`: architecture, sizes, files and tensors of a local model.
import { readdirSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { openModel } from '../../weights/open-model.ts';
import type { ModelFiles, TokenizerSource } from '../../weights/types.ts';
import { locateCached } from '../serve/model/locate-model.ts';
import { bytesByType, kvBytesPerToken, parameterCount, tensorBytes, unservable } from '../serve/model/model-facts.ts';
import { megabytes } from '../terminal/fields.ts';

/** Exit code 1 if the model cannot be served. @throws HubError for a hub reference that is not cached; ModelFileError */
export function inspect(model: string, json: boolean): void {
  const path = locateCached(model);
  const files = openModel(path);
  try {
    const problem = unservable(files);
    if (problem !== undefined) process.exitCode = 1;
    const report = describe(path, files, problem);
    if (json) console.log(JSON.stringify(report));
    else print(report);
  } finally {
    files.close();
  }
}

function describe(path: string, files: ModelFiles, problem: string | undefined) {
  const { tokenizer: source } = files;
  return {
    path,
    ...(problem !== undefined && { problem }),
    kind: files.kind,
    architecture: files.config.architecture,
    parameters: parameterCount(files),
    bytes: tensorBytes(files),
    types: bytesByType(files),
    context: files.config.maxPositions,
    kvBytesPerToken: kvBytesPerToken(files),
    tokenizer: source?.kind === 'gguf' ? source.data.model : source?.kind,
    chatTemplate: hasTemplate(source),
    files: fileSizes(path),
    config: files.config,
    defaults: files.generationDefaults,
    tensors: [...files.tensors()].map(({ name, type, shape }) => ({ name, type, shape })),
  };
}

function hasTemplate(source: TokenizerSource | undefined): boolean {
  return (source?.kind === 'gguf' ? source.data.chatTemplate : source?.chatTemplate) !== undefined;
}

function fileSizes(path: string): { readonly name: string; readonly bytes: number }[] {
  if (!statSync(path).isDirectory()) return [{ name: basename(path), bytes: statSync(path).size }];
  return readdirSync(path).flatMap((name) => {
    const stat = statSync(join(path, name), { throwIfNoEntry: false });
    return stat?.isFile() === true ? [{ name, bytes: stat.size }] : [];
  });
}

function servedBy({ encoder, embedding, ranking }: ModelFiles['config']): string {
  if (encoder?.labels !== undefined || ranking === 'label' || ranking === 'rows') return 'rankings (/v1/rerank)';
  if (encoder !== undefined) return `embeddings (${embedding?.pooling ?? 'mean'} pooling), no chats or completions`;
  return `chats, completions and embeddings (${embedding?.pooling ?? 'last'} pooling)`;
}

function print(report: ReturnType<typeof describe>): void {
  const { path, kind, architecture, parameters, bytes, types, context, tokenizer, chatTemplate, files } = report;
  const stored = Object.entries(types).map(([type, size]) => (size === undefined ? `${type} (unreadable)` : type));
  console.log(report.problem === undefined ? path : `${path}: ${report.problem}`);
  console.log(
    `  ${architecture}, ${(parameters / 1e6).toFixed(1)} M parameters, ${kind}, ${megabytes(bytes)}: ${stored.join(', ')}`,
  );
  console.log(`  context ${context} tokens, ${report.kvBytesPerToken} bytes of KV each (bf16)`);
  console.log(`  tokenizer ${tokenizer ?? 'none'}, ${chatTemplate ? 'with' : 'no'} chat template`);
  if (report.problem === undefined) console.log(`  serves ${servedBy(report.config)}`);
  for (const file of files) console.log(`  ${file.name}: ${megabytes(file.bytes)}`);
  for (const [name, value] of Object.entries({ ...report.config, ...report.defaults })) {
    if (value !== undefined) console.log(`  ${name}: ${typeof value === 'object' ? JSON.stringify(value) : value}`);
  }
  for (const { name, type, shape } of report.tensors) console.log(`  ${name} ${type} [${shape.join(', ')}]`);
}
