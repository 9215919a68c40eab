// Loaded before each test file.
import { Device } from '../../src/driver/device.js';
import { mailbox, native } from '../../src/driver/native.js';
import { needSecondDevice } from './device-memory.js';
import { directFaults } from './direct-faults.mjs';
import { skipTest } from './skip-test.js';

directFaults(native(), mailbox, skipTest);

if (process.env['CISTERN_DEVICE'] === 'cuda') {
  const { get } = Device;
  Device.get = (index) => {
    if (index === 1) needSecondDevice();
    return get(index);
  };
}
