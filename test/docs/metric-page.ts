// The reference page of metrics, rendered from the registry of a gateway.
import { Registry } from 'prom-client';
import { vi } from 'vitest';
import { GatewayMetrics } from '../../src/gateway/metrics/metrics.ts';
import { ScriptedPort } from '../gateway/scripted-port.ts';
import { figuresOf, noCluster } from '../gateway/world.ts';
import { wrap } from './wrap.ts';

interface Metric {
  readonly name: string;
  readonly help: string;
  readonly type: string;
  readonly labelNames: readonly string[];
}

const introduction = [
  '`GET /metrics` of a gateway, in Prometheus text format. Metrics without the label `worker` aggregate all instances.',
  '`worker` is the name of an instance that joined as a process, else its number. Values of other processes are at most half a second old, counters go on after a restart, and instances that are lost for ten minutes are left out.',
  'Every gateway of a cluster exports the figures of all instances: take the highest, for example `max by (worker) (kvasir_instance_up)` and `max(rate(kvasir_generated_tokens_total[5m]))`, as the dashboard for Grafana does. The highest is within one cluster: give each cluster a Prometheus job of its own, and select it (`{job="…"}`).',
  'Times, responses, refusals, goodput and figures by tenant are those of the gateway itself: add them up.',
  '`transport` is how pages travel: `thread` (copied inside the process), `shared` (memory of two processes), `tcp`, `rdma`, or `none` until the other side has been reached.',
  'The [changelog](../../CHANGELOG.md#names-of-options-and-metrics) lists former names, which remain as aliases for one version.',
  '[Operate](../guide/operate.md#metrics) names the metrics to watch.',
].join(' ');

const vllmNames = [
  'Routers and dashboards for vLLM read these (llm-d, the Gateway API inference extension, AIBrix, Dynamo).',
  'A gateway is one engine to them: values are those of all its instances.',
].join(' ');

/** `docs/reference/metrics.md`. */
export function metricPage(): string {
  const metrics = registered().filter(({ help }) => !help.startsWith('Alias of '));
  const of = (prefix: string) => metrics.filter(({ name }) => name.startsWith(prefix));
  const others = metrics.filter(({ name }) => !/^(kvasir_(instance|link)_|vllm:)/.test(name));
  return [
    ...['# Metrics', '', ...wrap(introduction), ''],
    ...wrap('This page is generated: `npx vitest run test/docs/reference.test.ts -u` writes it anew.'),
    ...['', '## Gateway and all instances', '', ...others.flatMap(item), ''],
    ...['## Per instance', '', ...of('kvasir_instance_').flatMap(item), ''],
    ...['## Between instances', '', ...of('kvasir_link_').flatMap(item), ''],
    ...["## Under vLLM's names", '', ...wrap(vllmNames), '', ...of('vllm:').flatMap(item), ''],
  ].join('\n');
}

function registered(): readonly Metric[] {
  const register = vi.spyOn(Registry.prototype, 'registerMetric');
  try {
    const port = new ScriptedPort(() => []);
    new GatewayMetrics(port, noCluster, figuresOf(port).figures);
    return register.mock.calls.map(([metric]) => metric as unknown as Metric);
  } finally {
    register.mockRestore();
  }
}

function item({ name, help, type, labelNames }: Metric): string[] {
  const labels = labelNames.filter((label) => label !== 'le').map((label) => `\`${label}\``);
  const kind = labels.length === 0 ? type : `${type} by ${labels.join(', ')}`;
  return wrap(`\`${name}\` (${kind}): ${help.replace(/\.?$/, '.')}`, '- ', '  ');
}
