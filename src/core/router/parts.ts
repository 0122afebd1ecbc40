// Policies that simulated worlds are put together from, and checked against: what stands below this room is reached through it.

export { queryRowBytes } from '../cost/dist-attention.ts';
export { RooflineCost } from '../cost/roofline.ts';
export type { BlockTable } from '../kvcache/block-table.ts';
export type { BlockListener } from '../kvcache/events/kv-event-log.ts';
export { admissionKinds } from './admission/admission.ts';
export { placementKinds } from './placement/placement.ts';
