// Entry of a tokenizer thread: tokenizes texts on request.
import { parentPort, workerData } from 'node:worker_threads';
import { textOf } from '../../../engine/model-text.ts';
import type { TokenizeCall, TokenizeResult } from '../../../runtime/tokenizer/tokenizer-pool.ts';
import { openModel } from '../../../weights/open-model.ts';

const files = openModel((workerData as { model: string }).model, false);
const text = textOf(files);
files.close();
if (text === undefined) throw new Error('Cannot tokenize text: the model has no tokenizer');
const { tokenizer } = text;

function answer({ call, text, addSpecial }: TokenizeCall): TokenizeResult {
  try {
    return { call, ids: Int32Array.from(tokenizer.encode(text, { addSpecial })) };
  } catch (error) {
    return { call, message: error instanceof Error ? error.message : String(error) };
  }
}

parentPort?.on('message', (message: TokenizeCall) => parentPort?.postMessage(answer(message)));
