/** A broken rule in a valid program. */
export class Violation extends Error {}
