// Entry of a thread that runs chaos seeds: it takes seeds of the queue in its data until none is left, and sends the outcome.
import { parentPort, workerData } from 'node:worker_threads';
import { runSeeds, SeedQueue } from './chaos-seeds.ts';

parentPort?.postMessage(runSeeds(new SeedQueue(workerData as SeedQueue['shared'])));
