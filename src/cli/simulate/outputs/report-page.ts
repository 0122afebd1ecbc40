// The page of a run as one self-contained file: markup, style, plots and data inlined.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { RunReport } from '../../../sim/report/report.ts';
import { packageFile } from '../../package-root.ts';

/** In the order of their imports. */
const modules = ['drawing/format', 'drawing/plots', 'drawing/heat-map', 'drawing/arrows', 'report/page'] as const;

const require = createRequire(import.meta.url);

export function reportPage(report: RunReport): string {
  const plotLibrary = require.resolve('uplot/dist/uPlot.iife.min.js');
  const plotStyle = require.resolve('uplot/dist/uPlot.min.css');
  const parts: Readonly<Record<string, string>> = {
    styles: [plotStyle, packageFile('web/drawing/style.css')].map((path) => `<style>${read(path)}</style>`).join('\n'),
    data: `<script id="data" type="application/json">${JSON.stringify(report).replaceAll('<', '\\u003c')}</script>`,
    scripts: [
      `<script>${inScript(read(plotLibrary))}</script>`,
      `<script type="module">${inScript(modules.map(inlined).join('\n'))}</script>`,
    ].join('\n'),
  };
  // A function, since `$` in a replacement string is special.
  return read(packageFile('web/report/page.html')).replace(/<!-- (\w+) -->/g, (_, name: string) => {
    const part = parts[name];
    if (part === undefined) throw new Error(`Cannot write the report: the page has an unknown part ${name}`);
    return part;
  });
}

function read(path: string): string {
  return readFileSync(path, 'utf8');
}

/** A module without imports and exports: all modules share one scope. */
function inlined(name: string): string {
  return read(packageFile(`web/${name}.mjs`))
    .replace(/^import [^;]*;$/gm, '')
    .replace(/^export /gm, '');
}

/** Escapes end tags in a script. */
function inScript(text: string): string {
  return text.replaceAll('</script', '<\\/script');
}
