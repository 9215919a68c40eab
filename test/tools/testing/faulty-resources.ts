import {
  CudaMemoryResource,
  type Device,
  type DevicePointer,
  type MemoryKind,
  type MemoryResource,
  MiB,
  PoolMemoryResource,
  type Stream,
} from '../../../src/index.js';

/** A correct resource. Each class below breaks it in one place. */
class Correct implements MemoryResource {
  readonly memoryKind: MemoryKind = 'device';
  readonly device: Device;
  readonly leaf = new CudaMemoryResource();
  readonly sound = new PoolMemoryResource(this.leaf, { initialBytes: 16 * MiB, maximumBytes: 16 * MiB });

  constructor() {
    this.device = this.sound.device;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    return this.sound.allocate(bytes, stream, alignment);
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    this.sound.deallocate(pointer, bytes, stream);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {
    this.sound.dispose();
    this.leaf.dispose();
  }
}

class GivesAPointerForZeroBytes extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    return super.allocate(bytes === 0 ? 256 : bytes, stream, alignment);
  }
}

class IgnoresAlignment extends Correct {
  override allocate(bytes: number, stream: Stream): DevicePointer {
    return super.allocate(bytes, stream);
  }
}

class GivesUnalignedPointers extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = super.allocate(bytes, stream, alignment);
    return bytes > 1000 && bytes % 256 !== 0 ? pointer + 64 : pointer;
  }
}

class GivesTheSameMemoryTwice extends Correct {
  #last = 0;

  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = super.allocate(bytes, stream, alignment);
    if (bytes > 16) return pointer;
    this.#last ||= pointer;
    return this.#last;
  }
}

class PromisesMemory extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = super.allocate(bytes, stream, alignment);
    return bytes === 1 ? (Promise.resolve(pointer) as never) : pointer;
  }
}

class ReturnsNothing extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = super.allocate(bytes, stream, alignment);
    return bytes === 1 ? (undefined as never) : pointer;
  }
}

class ReturnsText extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = super.allocate(bytes, stream, alignment);
    return bytes === 1 ? (`${pointer}` as never) : pointer;
  }
}

class ReturnsTheNullPointerWhenExhausted extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    return bytes > 16 * MiB ? 0 : super.allocate(bytes, stream, alignment);
  }
}

class FreesLater extends Correct {
  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream): never {
    super.deallocate(pointer, bytes, stream);
    return Promise.resolve() as never;
  }
}

class RoundsSizesDown extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    return super.allocate(bytes > 256 ? bytes - (bytes % 256) : bytes, stream, alignment);
  }

  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    super.deallocate(pointer, bytes > 256 ? bytes - (bytes % 256) : bytes, stream);
  }
}

class ThrowsAPlainErrorWhenExhausted extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (bytes > 16 * MiB) throw new Error('no memory');
    return super.allocate(bytes, stream, alignment);
  }
}

class LosesMemory extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (bytes === 2 * MiB) super.allocate(1 * MiB, stream);
    return super.allocate(bytes, stream, alignment);
  }
}

class IgnoresWhatItCannotFree extends Correct {
  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    try {
      super.deallocate(pointer, bytes, stream);
    } catch {}
  }
}

class FreesWithAnySize extends Correct {
  readonly #sizes = new Map<number, number>();

  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const pointer = super.allocate(bytes, stream, alignment);
    this.#sizes.set(pointer, bytes);
    return pointer;
  }

  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    super.deallocate(pointer, this.#sizes.get(pointer) ?? bytes, stream);
  }
}

class RoundsArgumentsToIntegers extends Correct {
  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    return super.allocate(Math.round(Number(bytes)), stream, alignment);
  }
}

class WorksAfterDispose extends Correct {
  override [Symbol.dispose](): void {}
}

class NeverReusesMemory extends Correct {
  override deallocate(_pointer: DevicePointer, _bytes: number, _stream: Stream): void {}
}

class SaysItEqualsOthers extends Correct {
  override isEqual(): boolean {
    return true;
  }
}

/** Keeps the last freed block and gives it to the next caller, without ordering. */
class ReusesWithoutWaiting extends Correct {
  #kept: { pointer: number; bytes: number } | undefined;

  override allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const kept = this.#kept;
    if (kept?.bytes !== bytes) return super.allocate(bytes, stream, alignment);
    this.#kept = undefined;
    return kept.pointer;
  }

  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    if (bytes === 0 || this.#kept?.pointer === pointer) super.deallocate(pointer, bytes, stream);
    else this.#kept = { pointer, bytes };
  }
}

/** Misreports its kind of memory. */
class NamesTheWrongKind extends Correct {
  override readonly memoryKind = 'managed';
}

/** A fault, the case that must notice it, and the message that it must give. */
export const faultyResources: readonly (readonly [fault: new () => MemoryResource, noticedBy: string, message: RegExp])[] = [
  [GivesAPointerForZeroBytes, 'returns the null pointer for zero bytes', /zero bytes must return the null pointer/],
  [IgnoresAlignment, 'supports every alignment up to its maximum', /must be a multiple of (512|1024|2048|4096|8192)/],
  [GivesUnalignedPointers, 'aligns to 256 for sizes', /must be a multiple of 256/],
  [PromisesMemory, 'aligns to 256 for sizes', /must be a safe integer above 0, got an instance of Promise/],
  [ReturnsNothing, 'aligns to 256 for sizes', /must be a safe integer above 0, got undefined/],
  [ReturnsText, 'aligns to 256 for sizes', /must be a safe integer above 0, got "\d+"/],
  [ReturnsTheNullPointerWhenExhausted, 'runs out of memory for sizes that no machine has', /must be refused, but was accepted/],
  [FreesLater, 'aligns to 256 for sizes', /deallocate must be synchronous, but returned a promise/],
  [GivesTheSameMemoryTwice, 'keeps live allocations separate', /must not overlap/],
  [RoundsSizesDown, 'keeps live allocations separate', /must not overlap/],
  [
    ThrowsAPlainErrorWhenExhausted,
    'runs out of memory for sizes that no machine has',
    /must throw an OutOfMemoryError, got Error: no memory/,
  ],
  [LosesMemory, 'runs out of memory at its capacity', /there must be room for \d blocks again/],
  [IgnoresWhatItCannotFree, 'refuses to free twice', /must be refused, but was accepted/],
  [IgnoresWhatItCannotFree, 'refuses to free a pointer that it did not allocate', /must be refused, but was accepted/],
  [IgnoresWhatItCannotFree, 'refuses to free a pointer into an allocation', /must be refused, but was accepted/],
  [FreesWithAnySize, 'refuses to free with a wrong size', /must be refused, but was accepted/],
  [RoundsArgumentsToIntegers, 'refuses invalid sizes', /bytes -0.5 must be refused/],
  [WorksAfterDispose, 'refuses to be used after one or two disposals', /must be refused, but was accepted/],
  [NeverReusesMemory, 'reuses freed memory', /out of memory/],
  [SaysItEqualsOthers, 'equals itself, and another only if', /it was not allocated by this resource/],
  [ReusesWithoutWaiting, 'reuses freed memory on another stream only in order', /must be 85, got 170/],
  [ReusesWithoutWaiting, 'reuses the last memory on another stream only in order', /must be 85, got 170/],
  [ReusesWithoutWaiting, 'keeps the order if the freeing stream is disposed', /must be 85, got 170/],
  [NamesTheWrongKind, 'returns memory of its kind', /must point to managed memory, got device/],
];

/** The resource that the faulty ones derive from. */
export const correctResource: new () => MemoryResource = Correct;
