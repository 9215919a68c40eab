/** `cistern/lasting`: memory that outlives its process, which `cistern keep` holds. */
export { LastingMemoryResource, type LastingMemoryResourceOptions, type OpenLastingOptions } from './lasting-memory-resource.js';
export { type KeepOptions, type KeepState, listRegions, removeRegion } from './manage-regions.js';
export type { RegionState } from './protocol.js';
