import { driverSuite } from '../driver/driver-suite.js';
import { describeOnGpu } from './gpu.js';

describeOnGpu('the CUDA device', () => driverSuite('cuda'));
