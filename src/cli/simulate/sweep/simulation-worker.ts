// Entry of a thread that runs simulations: each message has the options of one run and is answered with its figures.
import { parentPort } from 'node:worker_threads';
import { UsageError } from '../../usage-error.ts';
import { sweptReport } from './rate-search.ts';
import type { SimulationCall, SimulationResult } from './simulation-threads.ts';

async function answer({ call, options }: SimulationCall): Promise<SimulationResult> {
  try {
    return { call, report: await sweptReport(options) };
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    return { call, message, isUsage: error instanceof UsageError };
  }
}

parentPort?.on('message', async (message: SimulationCall) => parentPort?.postMessage(await answer(message)));
