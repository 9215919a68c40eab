/**
 * All environment variables that cistern reads. No other file reads one. `tools/cli/setting-descriptions.ts` says
 * what each is for.
 *
 * `basics/checked-settings.ts` has the rules for the values; this file knows no errors.
 */

/** The variables that cistern defines. */
export const settingNames = [
  'CISTERN_DEVICE',
  'CISTERN_SOFTWARE_MEMORY',
  'CISTERN_SOFTWARE_DEVICES',
  'CISTERN_SOFTWARE_PEERS',
  'CISTERN_SOFTWARE_STRICT',
  'CISTERN_SOFTWARE_FREES_WAIT',
  'CISTERN_SOFTWARE_CONCURRENT_MANAGED',
  'CISTERN_SOFTWARE_COHERENT',
  'CISTERN_SOFTWARE_MIGRATION_NS',
  'CISTERN_CHECK_ORDER',
  'CISTERN_EARLY_COLLECTION',
  'CISTERN_RESOURCE',
  'CISTERN_LIMIT',
  'CISTERN_LOG_FILE',
  'CISTERN_LOG_STACKS',
  'CISTERN_DUMP_ON_OUT_OF_MEMORY',
  'CISTERN_WATCH',
  'CISTERN_WATCH_INTERVAL',
  'CISTERN_WATCH_TOKEN',
  'CISTERN_WATCH_OPEN',
  'CISTERN_RUN',
  'CISTERN_KEEP',
  'CISTERN_ADDON',
] as const;

/** The variables of other programs that cistern respects. */
export type ForeignName =
  | 'NO_COLOR'
  | 'TERM'
  | 'CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'
  | 'LD_PRELOAD'
  | 'NVTX_INJECTION64_PATH'
  | 'XDG_RUNTIME_DIR'
  | 'XDG_CACHE_HOME'
  | 'CMAKE_GENERATOR'
  | 'npm_config_user_agent';

export type SettingName = (typeof settingNames)[number] | ForeignName;

/** The value of a variable, trimmed; `undefined` if it is not set or empty. */
export function setting(name: SettingName): string | undefined {
  return process.env[name]?.trim() || undefined;
}

/** Removes a variable, so that child processes do not have it. */
export function removeSetting(name: SettingName): void {
  delete process.env[name];
}

/** The environment with these variables added, for a child process. */
export function environmentWith(added: Readonly<Partial<Record<SettingName, string>>>): NodeJS.ProcessEnv {
  return { ...process.env, ...added };
}

/** The variables that are set and named as if they were cistern's, but that it does not read. */
export function unknownSettings(): string[] {
  return Object.keys(process.env).filter((name) => name.startsWith('CISTERN_') && !(settingNames as readonly string[]).includes(name));
}
