import { driverSuite } from './driver-suite.js';

driverSuite();
