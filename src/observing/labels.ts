/** Tells recordings when memory is named. */
import type { DevicePointer, MemoryResource } from '../memory-resource.js';

type LabelObserver = (resource: MemoryResource, pointer: DevicePointer, label: string) => void;

let observer: LabelObserver | undefined;

export function observeLabels(tell: LabelObserver): void {
  observer = tell;
}

/** Names a live allocation. @param resource the one that its owner has it from */
export function labelAllocation(resource: MemoryResource, pointer: DevicePointer, label: string): void {
  observer?.(resource, pointer, label);
}
