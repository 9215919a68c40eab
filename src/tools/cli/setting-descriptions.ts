/**
 * What each environment variable that cistern reads is for. `cistern doctor --verbose` prints it, and a test compares
 * `docs/settings.md` with it.
 */
import type { ForeignName, settingNames } from '../../settings.js';

/** One environment variable. */
export interface SettingDescription {
  /** Its possible values and their meanings, in Markdown. */
  readonly values: string;
  /** What applies if it is not set. */
  readonly default: string;
  /** The page in `docs/` with the details. */
  readonly page?: string | undefined;
  /** Its value must not be printed. */
  readonly isSecret?: true | undefined;
}

/** The variables that cistern defines. */
export const settings = {
  CISTERN_DEVICE: {
    values:
      '`cuda`; `software`; `auto`: CUDA if there is a driver (12.0 or newer) and a device, otherwise the software device, with a warning',
    default: '`auto`',
    page: 'guides/install.md',
  },
  CISTERN_SOFTWARE_MEMORY: {
    values: 'the memory of each software device, such as `4GiB`',
    default: "half of the machine's",
  },
  CISTERN_SOFTWARE_DEVICES: { values: 'the number of software devices, 1 to 8', default: '1' },
  CISTERN_SOFTWARE_PEERS: {
    values: "which software devices can reach each other's memory: `all`, `none`, or pairs such as `0-1,2-3`",
    default: '`all`',
  },
  CISTERN_SOFTWARE_STRICT: {
    values: "1: software devices are as strict as CUDA's documentation allows",
    default: '0',
  },
  CISTERN_SOFTWARE_FREES_WAIT: {
    values: '0: plain frees and the unmapping of virtual memory do not wait for software devices',
    default: '1',
  },
  CISTERN_SOFTWARE_CONCURRENT_MANAGED: {
    values: '0: the host and software devices cannot use managed memory at the same time',
    default: '1',
    page: 'guides/managed-memory.md',
  },
  CISTERN_SOFTWARE_COHERENT: {
    values: "1: software devices use the host's page tables, as on Grace Hopper, so that ordinary host memory moves to them",
    default: '0',
    page: 'guides/managed-memory.md',
  },
  CISTERN_SOFTWARE_MIGRATION_NS: {
    values: 'nanoseconds that each 2 MiB page of managed memory takes to move',
    default: '0',
    page: 'guides/managed-memory.md',
  },
  CISTERN_CHECK_ORDER: {
    values: '1: checks the order of all uses of memory from the start, and warns of each fault',
    default: '0',
    page: 'order-violations.md',
  },
  CISTERN_EARLY_COLLECTION: {
    values: '`on`; `off`: garbage is not collected before memory runs out',
    default: '`on`',
    page: 'design/008-buffers-and-the-collector.md',
  },
  CISTERN_RESOURCE: {
    values: 'a specification of the resource that buffers take by default',
    default: '`cuda`',
    page: 'adaptors.md',
  },
  CISTERN_LIMIT: {
    values: 'the most bytes that may be live through that resource: `8GiB`, or a share such as `50%` of what the process may use',
    default: 'no limit',
    page: 'guides/machine.md',
  },
  CISTERN_LOG_FILE: {
    values: 'a file in which to record what the program does with memory; `%p` stands for the process number',
    default: 'nothing is recorded',
    page: 'recording.md',
  },
  CISTERN_LOG_STACKS: {
    values:
      '`all`: records the stack of every allocation; a size: a stack whenever this much was allocated since the last, so that 0 is like `all`',
    default: 'no stacks',
    page: 'recording.md',
  },
  CISTERN_DUMP_ON_OUT_OF_MEMORY: {
    values: 'a folder: each of the first ten times that memory runs out, a file is written there, for `cistern report`',
    default: 'no file',
    page: 'guides/out-of-memory.md',
  },
  CISTERN_WATCH: {
    values: '1, or the port of a live page; if that is in use, another one is taken',
    default: 'no page',
    page: 'watch.md',
  },
  CISTERN_WATCH_INTERVAL: { values: 'milliseconds between two samples of that page, from 10', default: '1000', page: 'watch.md' },
  CISTERN_WATCH_TOKEN: {
    values: "the secret part of that page's address, 22 or more of `A-Z a-z 0-9 _ -`",
    default: 'random',
    page: 'watch.md',
    isSecret: true,
  },
  CISTERN_WATCH_OPEN: { values: '1: opens that page in a browser', default: '0', page: 'watch.md' },
  CISTERN_RUN: {
    values: 'the file through which `cistern run` knows the processes that it covers; it sets this itself',
    default: 'nothing is recorded from outside',
    page: 'outside.md',
  },
  CISTERN_KEEP: {
    values: 'the path of the socket of `cistern keep`',
    default: '`cistern-keep.sock` in `XDG_RUNTIME_DIR`, otherwise `cistern-keep-UID.sock` in `/tmp`',
    page: 'guides/lasting-memory.md',
  },
  CISTERN_ADDON: {
    values: 'the path of the addon, instead of looking for it',
    default: "the platform's package",
    page: 'guides/install.md',
  },
} as const satisfies Record<(typeof settingNames)[number], SettingDescription>;

/** The variables of other programs that cistern respects. */
export const foreignSettings = {
  NO_COLOR: { values: 'any value: the output of commands has no bold text', default: 'bold in a terminal' },
  TERM: { values: '`dumb`: commands show no progress and no bold text', default: 'both in a terminal' },
  CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: {
    values: 'what an MPS server lets a process use of each device, such as `0=2G,1=512M`',
    default: 'no limit',
  },
  NVTX_INJECTION64_PATH: {
    values: 'the library of a memory checker, which sets it: it is told about pools that are announced',
    default: 'none',
  },
  LD_PRELOAD: { values: 'libraries to load first, which `cistern run` keeps', default: 'none' },
  XDG_RUNTIME_DIR: { values: 'where `cistern keep` has its socket', default: '`/tmp`' },
  XDG_CACHE_HOME: { values: 'where `cistern build` puts an addon if it cannot write to the package', default: '`~/.cache`' },
  CMAKE_GENERATOR: { values: 'what `cistern build` builds with; only asked for on Windows', default: '`MinGW Makefiles` on Windows' },
  npm_config_user_agent: { values: 'the package manager that errors name in their advice', default: 'found by its lock file' },
} as const satisfies Record<ForeignName, SettingDescription>;
