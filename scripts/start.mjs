// `npm start`: prepares what a fresh clone lacks, then serves in this process; arguments go to `kvasir serve`.
import { runKvasir } from './kvasir.mjs';

await runKvasir(['serve', ...process.argv.slice(2)], console.log);
