/** Memory that can sleep, as its own resource and the resources above it see it. */
import type { VirtualMemory } from '../driver/memory/virtual-memory.js';
import type { MemoryResource, TrimmingMemoryResource } from '../memory-resource.js';
import { ResourcesAbove } from './resources-above.js';

/** A resource above one that sleeps, which keeps memory of it. */
export interface SleepObserver extends TrimmingMemoryResource {
  /** What it knows of its last call does not hold any more. Must not throw. */
  forgetLastStream(): void;
}

/** A resource whose memory can sleep. */
export interface SleepableMemoryResource extends MemoryResource {
  /** The name for the purpose of its memory. */
  readonly tag: string | undefined;
  /** Whether its memory is asleep, falling asleep or waking up. */
  readonly isAsleep: boolean;
  /** @internal */
  readonly sleepable: SleepableMemory;
}

/** What puts the memory to sleep: it learns what the resource does meanwhile. */
export interface MemorySleep {
  readonly isAwake: boolean;
  /** Before memory is freed. */
  beforeFree(): void;
  /** After memory was freed. */
  freed(pointer: number, bytes: number): void;
  /** The resource is disposed. */
  close(): void;
}

export class SleepableMemory {
  readonly memory: VirtualMemory;
  /** The resources above, which are trimmed before the memory sleeps, so that free memory is not kept. */
  readonly above = new ResourcesAbove<SleepObserver>();
  /** `undefined` for memory that has never slept. */
  sleep: MemorySleep | undefined;

  constructor(memory: VirtualMemory) {
    this.memory = memory;
  }

  get isAsleep(): boolean {
    return this.sleep?.isAwake === false;
  }
}

export function canSleep(resource: MemoryResource): resource is SleepableMemoryResource {
  return (resource as Partial<SleepableMemoryResource>).sleepable instanceof SleepableMemory;
}
