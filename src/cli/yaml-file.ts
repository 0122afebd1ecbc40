// Reads YAML files. The parser is loaded with the first file, so that a command without YAML files starts sooner.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

/** @throws Error with the reason in its first line */
export function readYaml(path: string): unknown {
  const text = readFileSync(path, 'utf8');
  const { parse }: typeof import('yaml') = createRequire(import.meta.url)('yaml');
  return parse(text);
}
