import type { NativeBinding } from '../../src/driver/native.js';

export declare const allocationsMayWait: boolean;
export declare const forbidsRegistration: boolean;
export declare const hasStreamMemoryOperations: boolean;
export declare const heldBackReason: string;
export declare const noFaultsReason: string;
export declare function directFaults(binding: NativeBinding, mailbox: Float64Array, skip: (reason: string) => void): void;
