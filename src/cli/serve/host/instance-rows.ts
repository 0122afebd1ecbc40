// Rows of `kvasir top`: gauges as they are, counters as rates since the last update.
import { z } from 'zod';
import { tableLines, wrapped } from '../../terminal/table.ts';

const count = z.number();
const instance = z.looseObject({
  instance: count,
  name: z.string().nullable(),
  role: z.string(),
  ready: z.boolean(),
  requests: z.object({ waiting: count, running: count }),
  pages: z.object({ total: count, used: count, cached: count, free: count }),
  prompt_tokens: count,
  cached_tokens: count,
  computed_prompt_tokens: count,
  generated_tokens: count,
  steps: count,
  step_seconds: count,
  sent_bytes: count,
  lending: z
    .object({
      lent_blocks: count,
      borrowed_blocks: count,
      debts: z.array(z.object({ to: count, blocks: count, loan_refusals: count })),
      guests: z.array(z.object({ of: count, queries: count, query_bytes: count, partial_bytes: count })),
    })
    .nullable(),
  attention_workers: z
    .array(
      z.object({
        ready: z.boolean(),
        losses: count,
        sequences: count.nullish(),
        held_tokens: count.nullish(),
        sent_bytes: count,
        received_bytes: count,
        wait_seconds: count,
        early_seconds: count,
        late_seconds: count,
        pulled_bytes: count.nullish(),
      }),
    )
    .nullish(),
  store: z.object({ taken_bytes: count }).nullable(),
  tiers: z.object({ host: z.object({ blocks: count }), ssd: z.object({ blocks: count }) }).nullable(),
  links: z.array(z.object({ to: count, transport: z.string().nullable(), bytes: count, backlog_bytes: count })),
});

/** The response of GET /api/cluster. */
export const clusterViewSchema = z.looseObject({
  model: z.string(),
  at_ms: count,
  ready: z.boolean(),
  instances: z.array(instance),
});
export type ClusterView = z.infer<typeof clusterViewSchema>;
type InstanceView = ClusterView['instances'][number];

/** Lines of at most `width` columns: a summary, the instances, and their attention workers. */
export function topScreen(view: ClusterView, before: ClusterView | undefined, width: number): readonly string[] {
  const workers = attentionWorkerRows(view, before);
  return [
    ...wrapped(`${view.model}: ${view.ready ? 'ready' : 'not ready'}, ${servingSummary(view)}`, width),
    ...tableLines(topRows(view, before), width),
    ...(workers.length === 0 ? [] : ['', ...tableLines(workers, width)]),
  ];
}

/** @param before the last view; undefined: no rates */
export function topRows(view: ClusterView, before: ClusterView | undefined): readonly object[] {
  const seconds = before === undefined ? 0 : (view.at_ms - before.at_ms) / 1000;
  const lends = view.instances.some(({ lending }) => lending !== null);
  const named = view.instances.some(({ name }) => name !== null);
  const hasStores = view.instances.some(({ store }) => store !== null);
  return view.instances.map((now) => {
    const then = before?.instances.find(({ instance: known }) => known === now.instance);
    const rate = (of: (each: InstanceView) => number) =>
      then === undefined || seconds <= 0 ? undefined : Math.max(0, (of(now) - of(then)) / seconds);
    const busy = rate((each) => each.step_seconds);
    return {
      instance: now.instance,
      ...(named && { name: now.name ?? undefined }),
      role: now.role,
      up: now.ready ? 'yes' : 'no',
      waiting: now.requests.waiting,
      running: now.requests.running,
      pages: `${now.pages.used}/${now.pages.total}`,
      cached: now.pages.cached,
      'load%': percent(busy),
      'prompt/s': rounded(rate((each) => each.computed_prompt_tokens)),
      'output/s': rounded(rate((each) => each.generated_tokens)),
      'hit%': now.prompt_tokens === 0 ? undefined : percent(now.cached_tokens / now.prompt_tokens),
      ...(lends && {
        lent: now.lending?.lent_blocks,
        borrowed: now.lending?.borrowed_blocks,
        owes: now.lending?.debts.flatMap(({ to, blocks }) => (blocks > 0 ? [`${to}:${blocks}`] : [])).join(' '),
        refused: now.lending?.debts.reduce((sum, debt) => sum + debt.loan_refusals, 0),
        'remote q/s': rounded(rate((each) => sumOf(each, ({ queries }) => queries))),
        'remote MB/s': rounded(
          rate((each) => sumOf(each, (debtor) => debtor.query_bytes + debtor.partial_bytes) / 1e6),
        ),
      }),
      ...(hasStores && {
        'stored host/SSD':
          now.store === null ? undefined : `${now.tiers?.host.blocks ?? 0}/${now.tiers?.ssd.blocks ?? 0}`,
        'received MB/s': now.store === null ? undefined : rounded(rate((each) => (each.store?.taken_bytes ?? 0) / 1e6)),
      }),
      ...(view.instances.some(({ links }) => links.length > 0) && {
        'sent over': [...new Set(now.links.flatMap(({ transport }) => transport ?? []))].join(' '),
        'sent MB/s': rounded(rate((each) => each.sent_bytes / 1e6)),
        'backlog MB': rounded(now.links.reduce((sum, link) => sum + link.backlog_bytes, 0) / 1e6),
      }),
    };
  });
}

/**
 * One row per attention worker: `t_m` and `t_a` are the times of the model worker and of the attention worker per step
 * (Lamina), `early%` the part of `t_a` before the keys of a step arrived. Averages since the last view, else of all
 * steps. `pulled MB`: pages of prompts from prefill instances, since the start.
 */
export function attentionWorkerRows(view: ClusterView, before: ClusterView | undefined): readonly object[] {
  return view.instances.flatMap((now) => {
    const then = before?.instances.find(({ instance: known }) => known === now.instance);
    const isFresh = then !== undefined && now.steps > then.steps;
    const since = isFresh ? then : undefined;
    const steps = now.steps - (since?.steps ?? 0);
    const perStepMs = (seconds: number) => (steps === 0 ? undefined : rounded((1000 * seconds) / steps));
    return (now.attention_workers ?? []).map((worker, index) => {
      const earlier = since?.attention_workers?.[index];
      const grown = (name: 'wait_seconds' | 'early_seconds' | 'late_seconds' | 'sent_bytes' | 'received_bytes') =>
        worker[name] - (earlier?.[name] ?? 0);
      const computed = grown('early_seconds') + grown('late_seconds');
      const stepSeconds = now.step_seconds - (since?.step_seconds ?? 0);
      return {
        instance: now.instance,
        'attention worker': index + 1,
        up: worker.ready ? 'yes' : 'no',
        losses: worker.losses,
        ...(typeof worker.sequences === 'number' && { sequences: worker.sequences, tokens: worker.held_tokens }),
        't_m ms': perStepMs(stepSeconds - grown('wait_seconds')),
        't_a ms': perStepMs(computed),
        'early%': computed === 0 ? undefined : percent(grown('early_seconds') / computed),
        'wait ms': perStepMs(grown('wait_seconds')),
        ...((worker.pulled_bytes ?? 0) > 0 && { 'pulled MB': rounded((worker.pulled_bytes ?? 0) / 1e6) }),
        'KB/step': steps === 0 ? undefined : rounded((grown('sent_bytes') + grown('received_bytes')) / 1000 / steps),
      };
    });
  });
}

/** "2 of 3 instances serve, 1 of 1 stores ready": stores do not serve requests. */
export function servingSummary({ instances }: ClusterView): string {
  const counted = (all: readonly InstanceView[]) => `${all.filter(({ ready }) => ready).length} of ${all.length}`;
  const stores = instances.filter(({ role }) => role === 'store');
  const readyStores = stores.length === 0 ? '' : `, ${counted(stores)} stores ready`;
  return `${counted(instances.filter(({ role }) => role !== 'store'))} instances serve${readyStores}`;
}

type RemoteCounts = NonNullable<InstanceView['lending']>['guests'][number];

/** Sums a count of remote attention over the debtors of an instance. */
function sumOf({ lending }: InstanceView, read: (debtor: RemoteCounts) => number): number {
  return (lending?.guests ?? []).reduce((sum, debtor) => sum + read(debtor), 0);
}

function percent(share: number | undefined): number | undefined {
  return share === undefined ? undefined : Math.round(100 * Math.min(1, share));
}

function rounded(value: number | undefined): number | undefined {
  return value === undefined ? undefined : Math.round(10 * value) / 10;
}
