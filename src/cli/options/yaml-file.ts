// Reads YAML files. Their parser is loaded with the first one: commands that are told all by flags start sooner without it.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

/** @throws Error whose first line says what is wrong */
export function readYaml(path: string): unknown {
  const text = readFileSync(path, 'utf8');
  const { parse }: typeof import('yaml') = createRequire(import.meta.url)('yaml');
  return parse(text);
}
