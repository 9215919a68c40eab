/** `cistern/lasting`: memory that outlives its process, which `cistern keep` holds. */
export { type FollowShareOptions, followShare, type ShareEvent, type ShareFollower } from './follow-share.js';
export { LastingMemoryResource, type LastingMemoryResourceOptions, type OpenLastingOptions } from './lasting-memory-resource.js';
export { type KeepOptions, type KeepState, listRegions, removeRegion, setShare } from './manage-regions.js';
export type { RegionState, ShareState } from './protocol.js';
