import type { NativeFaults } from './native-faults.mjs';

export declare const softwareGraphFaults: NativeFaults;
export declare const strictGraphFaults: NativeFaults;
