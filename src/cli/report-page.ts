// A run's page as one file that needs nothing else: markup, style, plots and data inlined.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { RunReport } from '../sim/report.ts';
import { packageFile } from './package-root.ts';

const require = createRequire(import.meta.url);

export function reportPage(report: RunReport): string {
  const plotLibrary = require.resolve('uplot/dist/uPlot.iife.min.js');
  const plotStyle = require.resolve('uplot/dist/uPlot.min.css');
  const parts: Readonly<Record<string, string>> = {
    styles: [plotStyle, packageFile('web/report/style.css')].map((path) => `<style>${read(path)}</style>`).join('\n'),
    data: `<script id="data" type="application/json">${JSON.stringify(report).replaceAll('<', '\\u003c')}</script>`,
    scripts: `<script>${script(plotLibrary)}</script>\n<script type="module">${script(packageFile('web/report/page.mjs'))}</script>`,
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

/** A script that cannot end its element early. */
function script(path: string): string {
  return read(path).replaceAll('</script', '<\\/script');
}
