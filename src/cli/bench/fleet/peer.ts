// Entry of a process of `kvasir bench fleet`: the engine, or with its address the bare proxy in front of it.
import { bareProxy } from '../../../bench/fleet/bare-proxy.ts';
import { FakeEngine } from '../../../bench/fleet/fake-engine.ts';

const [engine] = process.argv.slice(2);
const url = engine === undefined ? await new FakeEngine().listen() : await listening(bareProxy(engine));
console.log(`Serving on ${url}`);

function listening(server: ReturnType<typeof bareProxy>): Promise<string> {
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      resolve(`http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`);
    });
  });
}
