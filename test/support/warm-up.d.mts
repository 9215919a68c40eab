/** Makes a GPU's driver load what it fills and copies memory with, before tests count bytes. */
export function warmUp(cistern: typeof import('../../src/index.js')): void;
