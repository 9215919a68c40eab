/** The variables that give each device under test so much memory, if that can be chosen. */
export function deviceMemory(mebibytes: number): Record<string, string> {
  return { CISTERN_SOFTWARE_MEMORY: `${mebibytes}MiB`, STRICT_DRIVER_MEMORY_MB: String(mebibytes) };
}
