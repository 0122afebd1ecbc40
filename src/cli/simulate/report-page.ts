// A run's page as one file that needs nothing else: markup, style, plots and data inlined.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { RunReport } from '../../sim/report/report.ts';
import { packageFile } from '../package-root.ts';

/** Those imported before those that import them. */
const modules = ['format', 'plots', 'heat-map', 'arrows', 'page'] as const;

const require = createRequire(import.meta.url);

export function reportPage(report: RunReport): string {
  const plotLibrary = require.resolve('uplot/dist/uPlot.iife.min.js');
  const plotStyle = require.resolve('uplot/dist/uPlot.min.css');
  const parts: Readonly<Record<string, string>> = {
    styles: [plotStyle, packageFile('web/report/style.css')].map((path) => `<style>${read(path)}</style>`).join('\n'),
    data: `<script id="data" type="application/json">${JSON.stringify(report).replaceAll('<', '\\u003c')}</script>`,
    scripts: [
      `<script>${inScript(read(plotLibrary))}</script>`,
      `<script type="module">${inScript(modules.map(inlined).join('\n'))}</script>`,
    ].join('\n'),
  };
  // A function, so that no `$` in a part means anything.
  return read(packageFile('web/report/page.html')).replace(/<!-- (\w+) -->/g, (_, name: string) => {
    const part = parts[name];
    if (part === undefined) throw new Error(`Cannot write the report: its page asks for ${name}`);
    return part;
  });
}

function read(path: string): string {
  return readFileSync(path, 'utf8');
}

/** A module without its imports and exports: they all share one scope. */
function inlined(name: string): string {
  return read(packageFile(`web/report/${name}.mjs`))
    .replace(/^import [^;]*;$/gm, '')
    .replace(/^export /gm, '');
}

/** A script that cannot end its element early. */
function inScript(text: string): string {
  return text.replaceAll('</script', '<\\/script');
}
