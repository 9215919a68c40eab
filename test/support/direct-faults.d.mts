import type { NativeBinding } from '../../src/driver/native.js';

export declare function directFaults(binding: NativeBinding, mailbox: Float64Array, skip: (reason: string) => void): void;
