import { Command } from 'commander';
import { misspeltSettings } from '../../basics/checked-settings.js';
import { CisternError, reasonOf } from '../../basics/errors.js';
import { formatBytes } from '../../basics/units.js';
import { describeUsers, deviceUsage } from '../../budget/device-usage.js';
import type { DeviceUser } from '../../budget/device-user.js';
import { type MemoryBudget, memoryBudget } from '../../budget/memory-budget.js';
import {
  type Backend,
  type BackendChoice,
  backendFromEnvironment,
  cudaUnavailableReason,
  type MissingDriverFunction,
  missingDriverFunctions,
  selectBackend,
} from '../../driver/backend.js';
import { Device } from '../../driver/device.js';
import { lackForProcessSleep } from '../../driver/process-steps.js';
import { addonPath } from '../../package/addon.js';
import { type SettingName, setting, unknownSettings } from '../../settings.js';
import { ExitCode } from './exit-code.js';
import { deviceOption, jsonOption } from './options.js';
import { exitCodeOf } from './print-error.js';
import { foreignSettings, type SettingDescription, settings } from './setting-descriptions.js';
import type { Terminal } from './terminal.js';

/** The findings of `cistern doctor`. */
interface Diagnosis {
  readonly node: string;
  readonly platform: string;
  /** The path of the addon, or null if none could be loaded. */
  readonly addon: string | null;
  /** The backend in use, or null if none works. */
  readonly backend: Backend | null;
  /** In CUDA's numbering: 13000 is 13.0. Null if the device in use is not a CUDA device. */
  readonly driverVersion: number | null;
  /** The functions that the CUDA driver in use lacks, and what does not work without each. */
  readonly missingFunctions: readonly MissingDriverFunction[];
  /** Why processes cannot sleep (`cistern sleep`); null if they can, or if no backend works. */
  readonly processSleepUnavailableReason: string | null;
  /** Why CUDA cannot be used; null if it can, or if the reason is unknown. */
  readonly cudaUnavailableReason: string | null;
  readonly devices: readonly DeviceDescription[];
  /** What this process may use of the host's memory, and who says so. */
  readonly host: MemoryBudget | null;
  /** Each environment variable that cistern reads, with its value; null if it is not set. */
  readonly settings: Readonly<Record<string, string | null>>;
  /** Variables named as if they were cistern's, which it does not read; the one that was probably meant, or null. */
  readonly unknownSettings: Readonly<Record<string, string | null>>;
  /** Why the requested device does not work. */
  readonly error: { readonly code: string; readonly message: string } | null;
}

interface DeviceDescription {
  readonly index: number;
  readonly name: string;
  readonly uuid: string;
  readonly totalBytes: number;
  readonly freeBytes: number;
  readonly computeCapability: string;
  /** What this process may use of its memory, and who says so. */
  readonly budget: MemoryBudget;
  /** The processes that hold memory of it, or why nobody knows. */
  readonly users: readonly DeviceUser[] | string;
  readonly memoryPools: boolean;
  readonly managedMemory: boolean;
}

const examples = `
Exit status: 0 if the device works, 1 if not.

Examples:
  $ cistern doctor
  $ cistern doctor --device cuda
  $ cistern doctor --json
`;

/** `cistern doctor`: prints which device is used and, if it is not a CUDA device, why. */
export function doctorCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  return new Command('doctor')
    .addOption(deviceOption())
    .addOption(jsonOption())
    .addHelpText('after', examples)
    .option('--verbose', 'print every environment variable that cistern reads, and not only those that are set')
    .action(({ device, json, verbose = false }: { device?: BackendChoice; json?: boolean; verbose?: boolean }) => {
      const diagnosis = diagnose(device);
      terminal.stdout.write(json === true ? `${JSON.stringify(diagnosis, undefined, 2)}\n` : toText(diagnosis, verbose));
      if (diagnosis.error === null) return;
      terminal.stderr.write(`error: ${diagnosis.error.message}\n`);
      exitWith(ExitCode.failure);
    });
}

function diagnose(choice: BackendChoice | undefined): Diagnosis {
  let reason: string | undefined;
  let found: Pick<
    Diagnosis,
    'backend' | 'driverVersion' | 'missingFunctions' | 'processSleepUnavailableReason' | 'devices' | 'host' | 'error'
  >;
  try {
    reason = cudaUnavailableReason();
    found = { ...openDevices(choice, reason), error: null };
  } catch (error) {
    if (!(error instanceof CisternError) && exitCodeOf(error) !== ExitCode.usage) throw error;
    const { code, message } = error as CisternError;
    found = {
      backend: null,
      driverVersion: null,
      missingFunctions: [],
      processSleepUnavailableReason: null,
      devices: [],
      host: null,
      error: { code, message },
    };
  }
  return {
    node: process.version,
    platform: `${process.platform} ${process.arch}`,
    addon: addonPath() ?? null,
    cudaUnavailableReason: reason ?? null,
    settings: Object.fromEntries(descriptions().map(([name, description]) => [name, printableValue(name, description)])),
    unknownSettings: unknown(),
    ...found,
  };
}

function unknown(): Diagnosis['unknownSettings'] {
  const meantBy = new Map(misspeltSettings().map(({ name, meant }) => [name, meant]));
  return Object.fromEntries(unknownSettings().map((name) => [name, meantBy.get(name) ?? null]));
}

function openDevices(
  choice: BackendChoice | undefined,
  cudaReason: string | undefined,
): Pick<Diagnosis, 'backend' | 'driverVersion' | 'missingFunctions' | 'processSleepUnavailableReason' | 'devices' | 'host'> {
  const wanted = choice ?? backendFromEnvironment();
  // The output includes the reason, so avoid the warning of 'auto'.
  const backend = selectBackend(wanted === 'auto' && cudaReason !== undefined ? 'software' : wanted);
  const devices = Array.from({ length: Device.count() }, (_, index) => describeDevice(Device.get(index)));
  const isCuda = backend === 'cuda';
  return {
    backend,
    driverVersion: isCuda ? Device.driverVersion() : null,
    missingFunctions: isCuda ? missingDriverFunctions() : [],
    processSleepUnavailableReason: lackForProcessSleep() ?? null,
    devices,
    host: memoryBudget('host'),
  };
}

function describeDevice(device: Device): DeviceDescription {
  const { index, name, uuid } = device;
  return {
    index,
    name,
    uuid,
    ...device.memoryInfo(),
    budget: memoryBudget('device', device),
    users: usersOf(device),
    computeCapability: `${device.attribute('computeCapabilityMajor')}.${device.attribute('computeCapabilityMinor')}`,
    memoryPools: device.attribute('memoryPoolsSupported') === 1,
    managedMemory: device.attribute('managedMemory') === 1,
  };
}

function usersOf(device: Device): DeviceDescription['users'] {
  try {
    return deviceUsage(device).users ?? 'NVML does not tell';
  } catch (error) {
    return reasonOf(error);
  }
}

function toText(diagnosis: Diagnosis, isVerbose: boolean): string {
  const rows: [string, string][] = [
    ['node', `${diagnosis.node}, ${diagnosis.platform}`],
    ['addon', diagnosis.addon ?? 'not found'],
  ];
  if (diagnosis.cudaUnavailableReason !== null) rows.push(['no CUDA', diagnosis.cudaUnavailableReason]);
  if (diagnosis.backend !== null) rows.push(['backend', diagnosis.backend]);
  if (diagnosis.driverVersion !== null) rows.push(['driver', formatDriverVersion(diagnosis.driverVersion)]);
  if (diagnosis.backend !== null) rows.push(['sleep', diagnosis.processSleepUnavailableReason ?? 'processes can sleep: cistern sleep PID']);
  for (const { name, cost } of diagnosis.missingFunctions) rows.push(['missing', `${name}: ${cost}`]);
  for (const device of diagnosis.devices) {
    const memory = `${formatBytes(device.totalBytes)}, of which ${formatBytes(device.freeBytes)} free`;
    const capability = diagnosis.backend === 'cuda' ? ` (compute capability ${device.computeCapability})` : '';
    rows.push([`device ${device.index}`, `${device.name}${capability}, ${memory}`]);
    if (diagnosis.backend === 'cuda') {
      const { users } = device;
      rows.push(['', typeof users === 'string' ? users : users.length === 0 ? 'no process holds memory of it' : describeUsers(users)]);
    }
    if (device.budget.bytes < device.totalBytes) rows.push(['', describeBudget(device.budget)]);
  }
  if (diagnosis.host !== null) rows.push(['host', describeBudget(diagnosis.host)]);
  const lines = rows.map(([title, value]) => `${(title === '' ? '' : `${title}:`).padEnd(11)}${value}\n`);
  const settingRows = [...settingRowsOf(diagnosis, isVerbose), ...unknownRows(diagnosis)];
  const width = Math.max(...settingRows.map(([name]) => name.length));
  const settingLines = settingRows.map(([name, value]) => `  ${name.padEnd(width)}  ${value}\n`);
  const title = isVerbose
    ? 'environment variables:'
    : `environment variables that are set (--verbose: all ${descriptions().length} that are read):`;
  return [...lines, `\n${title}\n`, ...(settingRows.length === 0 ? ['  none\n'] : settingLines)].join('');
}

/** As in `may use 1 GiB, of which 700 MiB are left: control group (/sys/fs/cgroup/memory.max); machine, 32 GiB`. */
function describeBudget({ bytes, availableBytes, limits }: MemoryBudget): string {
  const [lowest, ...others] = limits.map(({ source, detail }) => `${source} (${detail})`);
  const rest = others.length === 0 ? '' : `; also ${others.join(', ')}`;
  return `this process may use ${formatBytes(bytes)}, of which ${formatBytes(availableBytes)} are left: ${lowest}${rest}`;
}

function settingRowsOf({ settings: values }: Diagnosis, isVerbose: boolean): [string, string][] {
  return descriptions()
    .filter(([name]) => isVerbose || (name in settings && values[name] !== null))
    .map(([name, description]) => [name, values[name] ?? `${description.default.replaceAll('`', '')} (default)`]);
}

function unknownRows({ unknownSettings }: Diagnosis): [string, string][] {
  return Object.entries(unknownSettings).map(([name, meant]) => [name, `unknown${meant === null ? '' : `: did you mean ${meant}?`}`]);
}

function printableValue(name: SettingName, { isSecret }: SettingDescription): string | null {
  const value = setting(name);
  return value === undefined ? null : isSecret === true ? 'set, not shown' : value;
}

function descriptions(): [SettingName, SettingDescription][] {
  return Object.entries({ ...settings, ...foreignSettings }) as [SettingName, SettingDescription][];
}

function formatDriverVersion(version: number): string {
  return `CUDA ${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}
