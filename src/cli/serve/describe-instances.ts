// Describes started instances: a line for the model, and one per instance if there are several.
import type { InstanceDescription } from '../../runtime/threads/thread-protocol.ts';
import { computes } from '../options/options.ts';

export function describeInstances(id: string, instances: readonly InstanceDescription[]): string {
  const first = instances.find(computes) ?? instances[0];
  if (first === undefined) throw new Error(`Cannot describe model ${id}: no instance serves it`);
  if (!computes(first)) return `Store for model ${id}: ${describeShare(first)}`;
  const { weights, inputs, isa, weightBytes, contextTokens } = first;
  const kernels = isa === 'reference' ? 'none (TypeScript reference)' : isa;
  const model =
    `Model ${id}: weights ${weights} (${megabytes(weightBytes)}), inputs ${inputs}, instruction set ${kernels}, ` +
    `context ${contextTokens} tokens`;
  if (instances.length === 1) return `${model}, ${describeShare(first)}`;
  return [model, ...instances.map((instance, i) => `Instance ${i}: ${instance.role}, ${describeShare(instance)}`)].join(
    '\n',
  );
}

function describeShare({ threads, kvBytes, tiers, role }: InstanceDescription): string {
  const share =
    role === 'store'
      ? 'no weights, no KV pool'
      : `${threads} ${threads === 1 ? 'thread' : 'threads'}, KV ${megabytes(kvBytes)}`;
  if (tiers === undefined) return share;
  const { hostBlocks, ssdBlocks, blockBytes, found } = tiers;
  const ssd =
    ssdBlocks === 0 ? '' : `, SSD ${megabytes(ssdBlocks * blockBytes)} (${found} of ${ssdBlocks} blocks found)`;
  return `${share}, host memory ${megabytes(hostBlocks * blockBytes)}${ssd}`;
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(0)} MB`;
}
