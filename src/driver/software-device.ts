import { bytesSetting, flagSetting, integerSetting, invalidSetting } from '../basics/checked-settings.js';
import { formatValue, invalidValue } from '../basics/errors.js';
import { assertInteger, assertOptions, optionNames } from '../basics/validation.js';
import { setting } from '../settings.js';
import { native } from './native.js';
import { check } from './status.js';

/**
 * Settings of the software device. They apply to the whole process. What is never set has the value of
 * the environment variable that the default names, as the first thread that uses the software device
 * has it.
 */
export interface SoftwareDeviceSettings {
  /**
   * The memory of each software device, in bytes, up to 4 TiB. May change at any time, but not to less
   * than is in use.
   * @defaultValue `CISTERN_SOFTWARE_MEMORY`, or half of the machine's memory
   */
  readonly totalBytes?: number | undefined;
  /**
   * The number of software devices, from 1 to 8. Fixed when the first one is used.
   * @defaultValue `CISTERN_SOFTWARE_DEVICES`, or 1
   */
  readonly devices?: number | undefined;
  /**
   * Whether the device uses every freedom that CUDA's documentation leaves a driver: host functions
   * of all streams run one at a time, plain allocations wait for the device, and the default
   * streams of every device have the same ids. May change at any time.
   * @defaultValue whether `CISTERN_SOFTWARE_STRICT` is 1
   */
  readonly strict?: boolean | undefined;
  /**
   * Whether plain frees, and the unmapping of virtual memory, wait for the work of the devices that
   * can use the memory. CUDA's documentation says that a free may wait, not that it does. May change
   * at any time.
   * @defaultValue whether `CISTERN_SOFTWARE_FREES_WAIT` is not 0
   */
  readonly freesWait?: boolean | undefined;
  /**
   * Whether the host and the devices can use managed memory at the same time. Otherwise, as on GPUs
   * before Pascal and on Windows, managed memory cannot be prefetched, or viewed by the host. May
   * change at any time.
   * @defaultValue whether `CISTERN_SOFTWARE_CONCURRENT_MANAGED` is not 0
   */
  readonly concurrentManagedAccess?: boolean | undefined;
  /**
   * Whether a device reads and writes ordinary host memory itself, in stream order, as with Linux's heterogeneous memory management.
   * A copy then returns before it has read, or written, that memory. May change at any time.
   * @defaultValue false
   */
  readonly pageableMemoryAccess?: boolean | undefined;
  /**
   * Whether the host and the devices are coherent, as on Grace Hopper: a device uses the host's page
   * tables, so that ordinary host memory can move to it, and the host reads managed memory that is at a
   * device without moving it. May change at any time.
   * @defaultValue whether `CISTERN_SOFTWARE_COHERENT` is 1
   */
  readonly coherent?: boolean | undefined;
  /**
   * How long each page of managed memory takes to move, in nanoseconds: an integer from 0 to 10^15.
   * The stream whose work needs the page waits. May change at any time.
   * @defaultValue `CISTERN_SOFTWARE_MIGRATION_NS`, or 0
   */
  readonly migrationNanoseconds?: number | undefined;
  /**
   * Which devices can be given access to each other's memory ({@link Device.enablePeerAccess}):
   * `'all'`, `'none'`, or pairs such as `[[0, 1], [2, 3]]`, each in both directions. May change at any
   * time; access that was given stays.
   * @defaultValue `CISTERN_SOFTWARE_PEERS`, which is `all`, `none`, or pairs such as `0-1,2-3`; or `'all'`
   */
  readonly peers?: 'all' | 'none' | readonly (readonly [number, number])[] | undefined;
}

const knownSettings = optionNames<SoftwareDeviceSettings>({
  coherent: 'boolean',
  concurrentManagedAccess: 'boolean',
  devices: true,
  freesWait: 'boolean',
  migrationNanoseconds: true,
  pageableMemoryAccess: 'boolean',
  peers: true,
  strict: 'boolean',
  totalBytes: true,
});

const longestMigration = 1e15;
const mostDevices = 8;
/** @internal The most memory of a software device. The native code has the same limit. */
export const mostSoftwareBytes = 2 ** 42;

/**
 * Sets the size and number of the software devices.
 * @throws ArgumentTypeError for a value of the wrong type; ArgumentRangeError for a value out of range, or an
 * environment variable of the software device that is invalid; DriverError if the change comes too late.
 */
export function configureSoftwareDevice(settings: SoftwareDeviceSettings): void {
  assertOptions(settings, knownSettings, 'settings');
  const { totalBytes, devices, strict, freesWait, concurrentManagedAccess, coherent, migrationNanoseconds: cost, peers } = settings;
  const { pageableMemoryAccess } = settings;
  if (totalBytes !== undefined) assertInteger(totalBytes, 'totalBytes', 1, mostSoftwareBytes, '1 to 2^42');
  if (devices !== undefined) assertInteger(devices, 'devices', 1, mostDevices);
  if (cost !== undefined) assertInteger(cost, 'migrationNanoseconds', 0, longestMigration, '0 to 10^15');
  const pairs = peers === undefined ? undefined : textOfPeers(peers);
  configureFromEnvironment();
  const flags = [freesWait, false, pageableMemoryAccess] as const;
  native().configureSoftware(totalBytes ?? 0, devices ?? 0, strict, concurrentManagedAccess, cost, coherent, pairs, ...flags);
  check('configure the software device');
}

/**
 * @internal Gives the software device the values of its environment variables, once in a process.
 * `configureSoftwareDevice` calls this first, so that the values from code replace them.
 * @throws ArgumentRangeError if one of them is invalid; nothing has changed then
 */
export function configureFromEnvironment(): void {
  if (isConfigured) return;
  native().configureSoftware(
    bytesSetting('CISTERN_SOFTWARE_MEMORY', 'a size such as 4GiB, up to 4TiB', 1, mostSoftwareBytes) ?? 0,
    integerSetting('CISTERN_SOFTWARE_DEVICES', 1, mostDevices) ?? 0,
    flagSetting('CISTERN_SOFTWARE_STRICT'),
    flagSetting('CISTERN_SOFTWARE_CONCURRENT_MANAGED'),
    integerSetting('CISTERN_SOFTWARE_MIGRATION_NS', 0, longestMigration, '0 to 10^15'),
    flagSetting('CISTERN_SOFTWARE_COHERENT'),
    peersFromEnvironment(),
    flagSetting('CISTERN_SOFTWARE_FREES_WAIT'),
    true,
  );
  check('configure the software device');
  isConfigured = true;
}

/** Whether this thread has given its values, or found that another one has. */
let isConfigured = false;

function peersFromEnvironment(): string | undefined {
  const text = setting('CISTERN_SOFTWARE_PEERS');
  if (text === undefined || text === 'all' || text === 'none') return text;
  if (/^[0-7]-[0-7](?:,[0-7]-[0-7])*$/.test(text) && text.split(',').every((pair) => pair[0] !== pair[2])) return text;
  throw invalidSetting('CISTERN_SOFTWARE_PEERS', 'all, none, or pairs of different devices from 0 to 7 such as 0-1,2-3');
}

/** Pairs, as written in `CISTERN_SOFTWARE_PEERS`. */
function textOfPeers(peers: NonNullable<SoftwareDeviceSettings['peers']>): string {
  if (peers === 'all' || peers === 'none') return peers;
  const isDevice = (device: unknown) => Number.isInteger(device) && (device as number) >= 0 && (device as number) <= 7;
  const isPair = (pair: unknown) => Array.isArray(pair) && pair.length === 2 && pair.every(isDevice) && pair[0] !== pair[1];
  if (!Array.isArray(peers) || !peers.every(isPair)) {
    const text = `peers must be 'all', 'none' or pairs of different devices from 0 to 7, got ${formatValue(peers)}`;
    throw invalidValue(text);
  }
  return peers.length === 0 ? 'none' : peers.map((pair) => pair.join('-')).join(',');
}
