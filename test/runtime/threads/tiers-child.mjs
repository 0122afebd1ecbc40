// A process with one instance over a folder of blocks, to be killed: answers prompts in an order of its own and prints each answer.
import { LiveCluster } from '../../../dist/runtime/threads/live-cluster.js';

const { settings, hashKey, requests } = JSON.parse(process.argv[2] ?? '{}');
const cluster = new LiveCluster({
  entry: new URL('../../../bundle/cli/serve/instance-worker.js', import.meta.url),
  instances: [{ role: 'mixed', settings }],
  hashKey: Uint32Array.from(hashKey),
  admission: { kind: 'none', slo: undefined, decodeUs: 0 },
  transport: 'memory',
  queueMax: 64,
  log: console.error,
});
await cluster.ready();
for (const [i, request] of requests.entries()) {
  const tokens = [];
  let cachedTokens = 0;
  await new Promise((resolve) => {
    cluster.submit({ ...request, id: `r${i}`, prompt: Int32Array.from(request.prompt) }, (event) => {
      if (event.kind === 'started') cachedTokens = event.cachedTokens;
      if (event.kind === 'tokens') tokens.push(...event.tokens);
      if (event.kind === 'finished' || event.kind === 'failed') resolve(undefined);
    });
  });
  console.log(JSON.stringify({ prompt: request.prompt, tokens, cachedTokens, tiers: cluster.snapshot().tiers }));
}
await cluster.close();
