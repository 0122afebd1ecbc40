// Latencies of a closed loop in closed form, without a simulation: for searches over thousands of constants.
import type { StepCostModel } from '../../core/cost/roofline.ts';
import { decodeShape } from '../../core/protocol/step-shape.ts';
import { type FrontendTimes, type ServingPoint, type SimulatedLatency, stepRowsMax } from './points.ts';

/**
 * All clients decode at the mean context. Prompts are computed in steps that decode rows share: each request delays the
 * others by its prefill beyond the fixed part of its steps. A request waits for half of a decode step, and for the
 * prompts before it as far as the server is busy with prompts.
 */
export function estimatePoint(point: ServingPoint, cost: StepCostModel, front: FrontendTimes): SimulatedLatency {
  const { concurrency: clients } = point;
  const mean = 1 - point.spread / 2;
  const [inputTokens, outputTokens] = [point.inputTokens * mean, point.outputTokens * mean];
  const decodeUs = cost.stepUs(decodeShape(clients, clients * (inputTokens + outputTokens / 2)));
  const chunks = Math.ceil(inputTokens / stepRowsMax);
  const rows = inputTokens / chunks;
  const chunk = { rows, keyRows: (rows * (inputTokens + 1)) / 2, decodeRows: 0, decodeKeys: 0, logitRows: 1 };
  const prefillUs = chunks * cost.stepUs(chunk);
  const sharedUs = Math.max(0, prefillUs - chunks * cost.stepUs(decodeShape(1, 1)));
  const tpotUs = decodeUs + ((clients - 1) * sharedUs) / outputTokens;
  const busyShare = Math.min(1, (clients * prefillUs) / (outputTokens * tpotUs));
  const queueUs = clients === 1 ? 0 : decodeUs / 2 + ((clients - 1) / 2) * prefillUs * busyShare;
  const ttftUs = front.requestUs + front.tokenUs * inputTokens + prefillUs + queueUs;
  return { ttftMs: ttftUs / 1000, tpotMs: tpotUs / 1000 };
}
