/** The variables that give each device under test so much memory, if that can be chosen. */
export function deviceMemory(mebibytes: number): Record<string, string> {
  const megabytes = String(mebibytes);
  return { CISTERN_SOFTWARE_MEMORY: `${megabytes}MiB`, STRICT_DRIVER_MEMORY_MB: megabytes, STRICT_DRIVER_CONTEXT_MB: '0' };
}
