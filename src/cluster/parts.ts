// Policies that simulated worlds are put together from, and checked against: what stands below this room is reached through it.
export { admissionKinds } from '../policy/admission/admission.ts';
export type { BlockListener } from '../policy/blocks/block-journal.ts';
export type { BlockTable } from '../policy/blocks/block-table.ts';
export { queryRowBytes } from '../policy/cost/dist-attention.ts';
export { RooflineCost } from '../policy/cost/roofline.ts';
export { placementKinds } from '../policy/placement/placement.ts';
