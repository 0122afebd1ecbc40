// Metrics that Prometheus scrapes: help in sentences, and aliases of renamed metrics.
import { expect, it } from 'vitest';
import type { InstanceSnapshot } from '../../../src/core/protocol/ports.ts';
import { GatewayMetrics } from '../../../src/gateway/metrics/metrics.ts';
import { ScriptedPort } from '../scripted-port.ts';
import { noCluster } from '../world.ts';

class BusyPort extends ScriptedPort {
  override instances(): readonly InstanceSnapshot[] {
    const activationLinks = [{ to: 1, bytes: 70, backlogBytes: 30, transport: 'tcp' as const }];
    return [{ ...this.snapshot(), receivePages: { free: 12, total: 16 }, pipelineChunks: [3, 4], activationLinks }];
  }
}

async function scrape(): Promise<string> {
  return (await new GatewayMetrics(new BusyPort(() => []), noCluster).render()).text;
}

it('every metric has a help text of one sentence', async () => {
  const helps = [...(await scrape()).matchAll(/^# HELP (\S+) (.*)$/gm)];
  expect(helps.length).toBeGreaterThan(60);
  for (const [, name, help] of helps) expect(help, name).toMatch(/^[A-Z\d].*[\w)]\.$/);
});

it.each([
  ['kvasir_instance_receive_buffer_pages_free', 'kvasir_instance_landing_pages_free', '{instance="0"}', '12'],
  ['kvasir_instance_pipeline_chunks_total', 'kvasir_instance_stage_chunks_total', '{instance="0",stage="1"}', '4'],
  ['kvasir_instance_activation_sent_bytes_total', 'kvasir_instance_rows_sent_bytes_total', '{instance="0"}', '70'],
  ['kvasir_link_activation_backlog_bytes', 'kvasir_link_rows_backlog_bytes', '{from="0",to="1",transport="tcp"}', '30'],
])('%s has the value of its alias %s', async (name, alias, labels, value) => {
  const lines = (await scrape()).split('\n');
  expect(lines).toContain(`${name}${labels} ${value}`);
  expect(lines).toContain(`${alias}${labels} ${value}`);
  expect(lines).toContain(`# HELP ${alias} Alias of ${name}, removed in the next version.`);
});
