// The dashboard for Grafana queries metrics that a gateway exports, by labels that they have.
import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { root } from '../../../scripts/root.mjs';

interface Panel {
  readonly title: string;
  readonly targets?: readonly { readonly expr: string; readonly legendFormat: string }[];
}

/** Labels by metric, of the page of metrics, which equals the registry of a gateway. */
function exportedMetrics(): ReadonlyMap<string, readonly string[]> {
  const page = readFileSync(`${root}/docs/reference/metrics.md`, 'utf8').replace(/\n {2}/g, ' ');
  const entries = [...page.matchAll(/^- `([\w:]+)` \((\w+)(?: by ([^)]*))?\)/gm)].map(
    ([, name = '', kind, labels = '']) => {
      const own = labels.replaceAll('`', '').split(', ');
      return [kind === 'histogram' ? `${name}_bucket` : name, kind === 'histogram' ? ['le', ...own] : own] as const;
    },
  );
  return new Map(entries);
}

const { panels } = JSON.parse(readFileSync(`${root}/deploy/grafana/kvasir.json`, 'utf8')) as { panels: Panel[] };
const targets = panels.flatMap((panel) => panel.targets ?? []);

it('counts figures of instances, which every gateway exports, once', () => {
  // Of the requests that a gateway has served itself.
  const ofGateway = /kvasir_(ttft|itl|tbt|request|refusals|tenant|goodput|slo)_/;
  for (const { expr } of targets) if (!ofGateway.test(expr)) expect(expr).toMatch(/\bmax(\(| by)/);
});

it('selects one cluster, a Prometheus job, in every figure', () => {
  for (const { expr } of targets)
    for (const [, selector] of expr.matchAll(/\bkvasir_\w+(\{[^}]*\})?/g)) expect(selector, expr).toBe('{job=~"$job"}');
});

it('queries exported metrics by their labels', () => {
  const metrics = exportedMetrics();
  expect(targets.length).toBeGreaterThan(25);
  for (const { expr, legendFormat } of targets) {
    const names = expr.match(/\b(kvasir|vllm)[:_]\w+/g) ?? [];
    expect(names.length, expr).toBeGreaterThan(0);
    const labels = [...expr.matchAll(/by \(([^)]*)\)/g), ...legendFormat.matchAll(/\{\{(\w+)\}\}/g)].flatMap(
      ([, list = '']) => list.split(', '),
    );
    for (const name of names) {
      expect(metrics.has(name), name).toBe(true);
      expect(metrics.get(name), expr).toEqual(expect.arrayContaining(labels));
    }
  }
});
