// Metrics that Prometheus scrapes: help in sentences, and aliases of renamed metrics.
import { spawnSync } from 'node:child_process';
import { expect, it } from 'vitest';
import { BlockAgeCounter } from '../../../src/core/kvcache/block-ages.ts';
import type { InstanceSnapshot } from '../../../src/core/protocol/ports.ts';
import type { RequestTrace } from '../../../src/core/protocol/request-trace.ts';
import type { LatencyBounds } from '../../../src/gateway/dashboard/class-latencies.ts';
import { GatewayMetrics } from '../../../src/gateway/metrics/metrics.ts';
import { ScriptedPort } from '../scripted-port.ts';
import { figuresOf, noCluster } from '../world.ts';

const ages = new BlockAgeCounter(2);
ages.stored(0);
ages.stored(1);
ages.nowUs = 250_000;
ages.reused(0);
ages.nowUs = 1_500_000;
ages.evicted(0);
ages.nowUs = 3_000_000_000;
ages.evicted(1);

class BusyPort extends ScriptedPort {
  override snapshot(): InstanceSnapshot {
    const tiers = {
      host: { blocks: 0, capacity: 9 },
      ssd: { blocks: 0, capacity: 0 },
      reads: { host: 3, ssd: 0, instance: 1 },
      lostBlocks: 0,
    };
    const tokens = { promptTokens: 140, cachedTokens: 80, blocks: { total: 25, tokens: 16 } };
    return { ...super.snapshot(), ...tokens, tiers, blockAges: ages.snapshot };
  }

  override instances(): readonly InstanceSnapshot[] {
    const activationLinks = [{ to: 1, bytes: 70, backlogBytes: 30, transport: 'tcp' as const }];
    return [{ ...this.snapshot(), receivePages: { free: 12, total: 16 }, pipelineChunks: [3, 4], activationLinks }];
  }
}

async function scrape(): Promise<string> {
  const port = new BusyPort(() => []);
  return (await new GatewayMetrics(port, noCluster, figuresOf(port).figures).render()).text;
}

it('every metric has a help text of one sentence', async () => {
  const helps = [...(await scrape()).matchAll(/^# HELP (\S+) (.*)$/gm)];
  expect(helps.length).toBeGreaterThan(60);
  for (const [, name, help] of helps) expect(help, name).toMatch(/^[A-Z\d].*[\w)]\.$/);
});

it.each([
  ['kvasir_instance_receive_buffer_pages_free', 'kvasir_instance_landing_pages_free', '{worker="0"}', '12'],
  ['kvasir_instance_pipeline_chunks_total', 'kvasir_instance_stage_chunks_total', '{worker="0",stage="1"}', '4'],
  ['kvasir_instance_activation_sent_bytes_total', 'kvasir_instance_rows_sent_bytes_total', '{worker="0"}', '70'],
  ['kvasir_link_activation_backlog_bytes', 'kvasir_link_rows_backlog_bytes', '{from="0",to="1",transport="tcp"}', '30'],
])('%s has the value of its alias %s', async (name, alias, labels, value) => {
  const lines = (await scrape()).split('\n');
  expect(lines).toContain(`${name}${labels} ${value}`);
  expect(lines).toContain(`${alias}${labels} ${value}`);
  expect(lines).toContain(`# HELP ${alias} Alias of ${name}, removed in the next version.`);
});

it('exports the figures of all instances under the names of vLLM', async () => {
  const lines = (await scrape()).split('\n');
  const labels = 'model_name="bytes",engine="0"';
  expect(lines).toEqual(
    expect.arrayContaining([
      `vllm:num_requests_waiting{${labels}} 0`,
      `vllm:num_requests_running{${labels}} 0`,
      `vllm:kv_cache_usage_perc{${labels}} 0.4`,
      `vllm:cache_config_info{${labels},block_size="16",num_gpu_blocks="25"} 1`,
      `vllm:prompt_tokens_by_source_total{${labels},source="local_compute"} 60`,
      `vllm:prompt_tokens_by_source_total{${labels},source="local_cache_hit"} 16`,
      `vllm:prompt_tokens_by_source_total{${labels},source="external_kv_transfer"} 64`,
      'kvasir_prompt_tokens_by_source_total{source="computed"} 60',
      'kvasir_prompt_tokens_by_source_total{source="host_memory"} 48',
      'kvasir_prompt_tokens_by_source_total{source="instance"} 16',
    ]),
  );
});

it('exports block ages as cumulative histograms', async () => {
  const lines = (await scrape()).split('\n');
  const labels = 'model_name="bytes",engine="0"';
  expect(lines).toEqual(
    expect.arrayContaining([
      'kvasir_kv_block_lifetime_seconds_bucket{le="1"} 0',
      'kvasir_kv_block_lifetime_seconds_bucket{le="2"} 1',
      'kvasir_kv_block_lifetime_seconds_bucket{le="+Inf"} 2',
      'kvasir_kv_block_lifetime_seconds_sum 3001.5',
      'kvasir_kv_block_reuse_gap_seconds_count 1',
      `vllm:kv_block_reuse_gap_seconds_bucket{le="0.5",${labels}} 1`,
      `vllm:kv_block_reuse_gap_seconds_sum{${labels}} 0.25`,
    ]),
  );
});

it('names follow the conventions of Prometheus', async () => {
  const text = await scrape();
  const types = new Map([...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name = '', type = '']) => [name, type]));
  const faults: string[] = [];
  for (const [name, type] of types) {
    // The names of vLLM are given.
    if (name.startsWith('vllm:')) continue;
    if (!/^(kvasir|process)_[a-z0-9_]+$/.test(name)) faults.push(`${name} has other characters or another prefix`);
    if ((type === 'counter') !== name.endsWith('_total')) faults.push(`${name} is a ${type}`);
    if (/_(ms|us|milliseconds|microseconds|kilobytes|mib|minutes|percent)(_|$)/.test(name))
      faults.push(`${name} has no base unit`);
    if (/_(gauge|counter|histogram|bucket|sum|count)$/.test(name)) faults.push(`${name} contains a type`);
    if (!text.includes(`# HELP ${name} `)) faults.push(`${name} has no help`);
  }
  for (const [, name = '', labels = ''] of text.matchAll(/^([a-z]\w*)\{(.*)\} /gm))
    for (const [, label = ''] of labels.matchAll(/(\w+)="/g))
      if (['instance', 'job'].includes(label) || !/^[a-z_]+$/.test(label))
        faults.push(`${name} has the label ${label}`);
  expect(faults).toEqual([]);
});

it('leaves out departed workers, and names the others', async () => {
  class Cluster extends BusyPort {
    override instances(): readonly InstanceSnapshot[] {
      const [one] = super.instances();
      if (one === undefined) return [];
      return [
        { ...one, name: 'a', departed: true },
        { ...one, name: 'b' },
      ];
    }
  }
  const roles = () => ['prefill', 'decode'] as const;
  const port = new Cluster(() => []);
  const metrics = new GatewayMetrics(port, { ...noCluster, roles }, figuresOf(port).figures, { version: '1.2.3' });
  const { text } = await metrics.render();
  expect(text).toContain('kvasir_instance_up{worker="b"}');
  expect(text).toContain('kvasir_worker_info{worker="b",role="decode"} 1');
  expect(text).toContain('kvasir_link_activation_sent_bytes_total{from="b",to="b",transport="tcp"} 70');
  expect(text).not.toContain('worker="a"');
  expect(text).toContain(`kvasir_build_info{version="1.2.3",node="${process.version}"} 1`);
});

it('counts refusals by reason, class and tenant', async () => {
  let end: (trace: RequestTrace) => void = () => {};
  const onEnded = (listener: typeof end): void => {
    const before = end;
    end = (trace) => {
      before(trace);
      listener(trace);
    };
  };
  const port = new BusyPort(() => []);
  const metrics = new GatewayMetrics(port, { ...noCluster, onEnded }, figuresOf(port).figures);
  const cause = { reason: 'queue', at: 'prefill', accepted: 9, queueMax: 9 } as const;
  const failed = { kind: 'failed', code: 'KV_OVERLOADED', message: '', cause } as const;
  const ended = { state: 'refused', placements: [], sloClass: 'chat', tenant: 'one', end: failed };
  end(ended as unknown as RequestTrace);
  end({ ...ended, end: { ...failed, cause: undefined } } as unknown as RequestTrace);
  metrics.refusedUnread();
  const lines = (await metrics.render()).text.split('\n').filter((line) => line.startsWith('kvasir_refusals_total{'));
  expect(lines).toEqual([
    'kvasir_refusals_total{reason="queue",slo_class="chat",tenant="one"} 1',
    'kvasir_refusals_total{reason="queue",slo_class="",tenant=""} 1',
  ]);
});

it('counts requests within the bounds of their class, and all of the class', async () => {
  let end: (trace: RequestTrace) => void = () => {};
  const listeners: (typeof end)[] = [];
  const onEnded = (listener: typeof end): void => void listeners.push(listener);
  end = (trace) => {
    for (const listener of listeners) listener(trace);
  };
  const port = new BusyPort(() => []);
  const bounds: Record<string, LatencyBounds> = {
    chat: { ttft: { us: 100 }, tbt: { us: 10 } },
    report: { completion: { us: 1000 } },
    ratio: { ttft: { times: 10 } },
  };
  const boundsOf = (name: string) => bounds[name];
  const metrics = new GatewayMetrics(port, { ...noCluster, onEnded }, figuresOf(port).figures, { boundsOf });
  const base = { state: 'finished', batch: false, placements: [], submittedUs: 0, outputTokens: 11 };
  const times = { firstTokenUs: 100, lastTokenUs: 200, endedUs: 200 };
  const ended = (sloClass: string | undefined, changes: object = {}) =>
    end({ ...base, ...times, sloClass, ...changes } as unknown as RequestTrace);
  ended('chat');
  ended('chat', { firstTokenUs: 101 });
  ended('chat', { lastTokenUs: 201 });
  ended('chat', { state: 'failed', firstTokenUs: undefined });
  ended('chat', { state: 'cancelled' });
  ended('chat', { batch: true });
  ended('chat', { outputTokens: 1, lastTokenUs: 100 });
  ended('report', { endedUs: 1000 });
  ended('report', { endedUs: 1001 });
  ended('ratio');
  ended(undefined);
  const lines = (await metrics.render()).text.split('\n').filter((line) => /^kvasir_(goodput|slo)_/.test(line));
  expect(lines).toEqual([
    'kvasir_slo_requests_total{slo_class="chat"} 5',
    'kvasir_slo_requests_total{slo_class="report"} 2',
    'kvasir_goodput_requests_total{slo_class="chat"} 2',
    'kvasir_goodput_requests_total{slo_class="report"} 1',
  ]);
});

const hasPromtool = spawnSync('promtool', ['--version']).status === 0;

it.skipIf(!hasPromtool)('promtool objects to the colon in names of vLLM alone (needs promtool)', async () => {
  const { stderr } = spawnSync('promtool', ['check', 'metrics'], { input: await scrape(), encoding: 'utf8' });
  const objections = stderr.split('\n').filter((line) => line !== '');
  expect(objections.filter((line) => !/^vllm:\S+ metric names should not contain ':'$/.test(line))).toEqual([]);
});
