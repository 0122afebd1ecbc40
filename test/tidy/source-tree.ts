// The repository as text: the files that the tidy rules look at.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface SourceFile {
  /** Relative to the root, with forward slashes. */
  readonly path: string;
  readonly text: string;
}

const folders = ['src', 'test', 'scripts', 'native', 'web'];
const extensions = ['.ts', '.mjs', '.cc', '.hpp'];

/** Every source file of the project below `root`; data and build output are not sources. */
export function readSourceTree(root: string): readonly SourceFile[] {
  const files: SourceFile[] = [];
  for (const folder of folders) {
    if (!existsSync(join(root, folder))) continue;
    for (const name of readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }).sort()) {
      const path = `${folder}/${name.replaceAll('\\', '/')}`;
      if (path.startsWith('test/data/') || !extensions.some((extension) => path.endsWith(extension))) continue;
      files.push({ path, text: readFileSync(join(root, path), 'utf8') });
    }
  }
  return files;
}
