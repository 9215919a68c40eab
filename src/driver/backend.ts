import { wordSetting } from '../basics/checked-settings.js';
import { CisternError, DeviceUnavailableError, formatValue, invalidValue } from '../basics/errors.js';
import { formatBytes } from '../basics/units.js';
import { mailbox, native } from './native.js';
import { configureFromEnvironment } from './software-device.js';
import { check } from './status.js';

/** What the devices of this process are: real GPUs, or the software device. */
export type Backend = 'cuda' | 'software';

/**
 * How to choose the backend. `auto` uses CUDA if there is a driver and a device; otherwise it uses
 * the software device, and warns once.
 */
export type BackendChoice = 'auto' | Backend;

const choices: readonly BackendChoice[] = ['auto', 'cuda', 'software'];

let opened: Backend | undefined;
let beforeOpening = (): void => {};

/**
 * Chooses the devices of this environment (the main thread or one worker). Call it before anything
 * uses a device. If you do not call it, the environment variable `CISTERN_DEVICE` decides; its
 * default is `auto`.
 * @returns the backend in use
 * @throws DeviceUnavailableError for `cuda` if no CUDA device can be used; the message says what
 * was searched for.
 * @throws ArgumentRangeError for any other word, or if the software device is opened and one of its
 * environment variables is invalid.
 * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if the other backend is already in use.
 */
export function selectBackend(choice: BackendChoice): Backend {
  if (!choices.includes(choice)) {
    throw invalidValue(`the device must be one of ${choices.join(', ')}, got ${formatValue(choice)}`);
  }
  if (opened !== undefined) {
    if (choice === 'auto' || choice === opened) return opened;
    throw new CisternError('ERR_CISTERN_INVALID_STATE', `the ${choice} device cannot be selected: the ${opened} device is already in use`);
  }
  if (choice !== 'software') {
    const reason = native().cudaUnavailableReason();
    if (reason === '') return open('cuda');
    if (choice === 'cuda') throw new DeviceUnavailableError(`no CUDA device can be used: ${reason}`);
    if (process.getBuiltinModule('node:worker_threads').isMainThread) {
      process.emitWarning(
        `cistern runs on its software device, in host memory: ${reason}. Set CISTERN_DEVICE=software to choose it silently`,
        {
          code: 'CISTERN_SOFTWARE_DEVICE',
        },
      );
    }
  }
  return open('software');
}

/** The backend in use; the first call opens it. */
export function currentBackend(): Backend {
  return opened ?? selectBackend(backendFromEnvironment());
}

/** Calls a function before a backend is opened; if it throws, the backend is not opened. */
export function atOpening(action: () => void): void {
  beforeOpening = action;
}

/** Why CUDA cannot be used, in one sentence, or `undefined` if it can. */
export function cudaUnavailableReason(): string | undefined {
  return native().cudaUnavailableReason() || undefined;
}

/** A function that the CUDA driver lacks, and what does not work without it. */
export interface MissingDriverFunction {
  readonly name: string;
  readonly cost: string;
}

/**
 * The functions that the CUDA driver lacks. Empty if no driver can be used: then
 * `cudaUnavailableReason` says why.
 */
export function missingDriverFunctions(): readonly MissingDriverFunction[] {
  const lines = native().missingDriverFunctions().split('\n').slice(0, -1);
  return lines.map((line) => {
    const [name, cost] = line.split('\t') as [string, string];
    return { name, cost };
  });
}

/** @internal What `CISTERN_DEVICE` asks for. */
export function backendFromEnvironment(): BackendChoice {
  return wordSetting('CISTERN_DEVICE', choices) ?? 'auto';
}

function open(backend: Backend): Backend {
  beforeOpening();
  if (backend === 'software') configureFromEnvironment();
  native().openBackend(backend === 'cuda' ? 0 : 1);
  check(`open the ${backend} device`);
  opened = backend;
  native().onKeptOrphans(warnOfKeptMemory);
  return backend;
}

function warnOfKeptMemory(): void {
  native().readKeptOrphans();
  const [, status, bytes] = mailbox as unknown as [number, number, number];
  const name = native().statusName(status) || `status ${status}`;
  process.emitWarning(
    `${formatBytes(bytes)} that are no longer used cannot be freed yet, because waiting for the device fails with ` +
      `${name} (${status}); cistern will try again`,
    { code: 'CISTERN_KEPT_MEMORY' },
  );
}
