// Entry of a tokenizer thread whose ids are the length of the text; the text `endless` never ends.
import { parentPort } from 'node:worker_threads';

parentPort.on('message', ({ call, text }) => {
  while (text === 'endless');
  parentPort.postMessage({ call, ids: Int32Array.of(text.length) });
});
