/** Puts the pages of several versions into one site; the newest first, `next` before it. */
export function joinVersions(site: string, versions: readonly (readonly [name: string, folder: string])[]): void;
