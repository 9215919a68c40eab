import { mailbox, native } from '../../src/driver/native.js';
import {
  CudaMemoryResource,
  Device,
  HostMemoryResource,
  ManagedMemoryResource,
  PinnedHostMemoryResource,
  type ReservingMemoryResource,
} from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';

/** What is held of the host and of the devices, in bytes and in driver objects. */
export type Ledger = Readonly<Record<string, number>>;

const plainResources: Readonly<Record<string, (device: Device) => ReservingMemoryResource>> = {
  device: (device) => new CudaMemoryResource({ device }),
  managed: (device) => new ManagedMemoryResource({ device }),
  'pinned-host': (device) => new PinnedHostMemoryResource({ device }),
  host: (device) => new HostMemoryResource({ device }),
};

/** Takes the ledger after all queued work has run. */
export function takeLedger(): Ledger {
  const ledger: Record<string, number> = {};
  for (let index = 0; index < Device.count(); index++) {
    const device = Device.get(index);
    device.synchronizeSync();
    const { freeBytes, totalBytes } = device.memoryInfo();
    ledger[`bytes of device ${index}`] = totalBytes - freeBytes;
    for (const [kind, create] of Object.entries(plainResources)) {
      ledger[`bytes of ${kind} memory of device ${index}`] = create(device).reservedBytes;
    }
  }
  const { byFunction } = driverCallCounts();
  const calls = (name: string) => byFunction[name] as number;
  ledger['driver pools'] = calls('cuMemPoolCreate') - calls('cuMemPoolDestroy');
  ledger['executable graphs'] = calls('cuGraphInstantiateWithFlags') - calls('cuGraphExecDestroy');
  // The device knows, because native code also makes streams, in calls that are not counted.
  native().liveStreams();
  ledger['streams'] = mailbox[1] as number;
  return ledger;
}

/**
 * What the second ledger has more than the first.
 * @param failed driver functions that were called once each without effect, but are counted
 */
export function leaksBetween(before: Ledger, after: Ledger, failed: readonly string[]): string[] {
  const failures = (name: string) => failed.filter((each) => each === name).length;
  const corrections: Ledger = {
    'driver pools': failures('cuMemPoolDestroy') - failures('cuMemPoolCreate'),
    'executable graphs': failures('cuGraphExecDestroy') - failures('cuGraphInstantiateWithFlags'),
  };
  const leaks: string[] = [];
  for (const [name, held] of Object.entries(after)) {
    const more = held - (before[name] as number) + (corrections[name] ?? 0);
    if (more > 0) leaks.push(`${more} ${name}`);
  }
  return leaks;
}
