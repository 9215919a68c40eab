// Loaded before each test file.
import { Device } from '../../src/driver/device.js';
import { mailbox, native } from '../../src/driver/native.js';
import { needSecondDevice } from './device-memory.js';
import { directFaults } from './direct-faults.mjs';
import { isGpu } from './real-gpu.js';
import { skipTest } from './skip-test.js';
import { warmUp } from './warm-up.mjs';

/** A process that runs several files replaces functions once. */
const replaced = globalThis as { cisternDeviceOfTests?: typeof Device };

if (replaced.cisternDeviceOfTests !== Device) {
  replaced.cisternDeviceOfTests = Device;
  directFaults(native(), mailbox, skipTest);
  if (isGpu) warmUp(await import('../../src/index.js'));
  if (process.env['CISTERN_DEVICE'] === 'cuda') {
    const { get } = Device;
    Device.get = (index) => {
      if (index === 1) needSecondDevice();
      return get(index);
    };
  }
}
