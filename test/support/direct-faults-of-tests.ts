// Loaded before each test file.
import { mailbox, native } from '../../src/driver/native.js';
import { directFaults } from './direct-faults.mjs';
import { skipTest } from './skip-test.js';

directFaults(native(), mailbox, skipTest);
