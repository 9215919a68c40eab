import type { Writable } from 'node:stream';
import { expectTypeOf, test } from 'vitest';
import type {
  AllocationStatistics,
  BinningMemoryResourceOptions,
  CachingMemoryResource,
  DeallocationEvents,
  DeallocationFence,
  Device,
  DeviceBuffer,
  Event,
  LimitingResourceAdaptorOptions,
  LoggingResourceAdaptorOptions,
  MemoryKind,
  MemoryResource,
  ReclaimingResourceAdaptorOptions,
  RoundingResourceAdaptorOptions,
  Stream,
} from '../../src/index.js';
import type { RecordingResourceAdaptorOptions } from '../../src/recording/index.js';
import type { ConformanceSubject, ResourceHarness } from '../../src/tools/testing/index.js';

test('the interface can be implemented with the exported types', () => {
  class Mine implements MemoryResource {
    declare readonly memoryKind: MemoryKind;
    declare readonly device: Device;
    allocate(_bytes: number, _stream: Stream, _alignment?: number): number {
      return 0;
    }
    deallocate(_pointer: number, _bytes: number, _stream: Stream, _fence?: DeallocationFence): void {}
    isEqual(other: MemoryResource): boolean {
      return other === this;
    }
    [Symbol.dispose](): void {}
  }
  expectTypeOf<Mine>().toExtend<MemoryResource>();
  expectTypeOf<{ readonly resource: Mine }>().toExtend<ConformanceSubject>();
  expectTypeOf<ResourceHarness['create']>().returns.toEqualTypeOf<ConformanceSubject>();
});

test('a fence is a policy or an event', () => {
  expectTypeOf<DeallocationEvents>().toEqualTypeOf<'eager' | 'deferred' | 'off'>();
  expectTypeOf<DeallocationFence>().toEqualTypeOf<DeallocationEvents | Event>();
});

test('options are readonly, and required ones are required', () => {
  expectTypeOf<{ limitBytes: 5 }>().toExtend<LimitingResourceAdaptorOptions>();
  expectTypeOf<{ deallocationEvents: 'off' }>().not.toExtend<LimitingResourceAdaptorOptions>();
  expectTypeOf<{ stages: ['trim', 'callback']; onOutOfMemory: () => true }>().toExtend<ReclaimingResourceAdaptorOptions>();
  expectTypeOf<{ onOutOfMemory: () => Promise<number> }>().not.toExtend<ReclaimingResourceAdaptorOptions>();
  expectTypeOf<{ bins: readonly [512, { bytes: 4096; resource: MemoryResource }] }>().toExtend<BinningMemoryResourceOptions>();
  expectTypeOf<{ bins: [{ bytes: 4096 }] }>().not.toExtend<BinningMemoryResourceOptions>();
  expectTypeOf<{ file: string; autoFlush: true }>().toExtend<LoggingResourceAdaptorOptions>();
  expectTypeOf<{ stream: Writable }>().toExtend<LoggingResourceAdaptorOptions>();
  expectTypeOf<{ file: string; stream: Writable }>().not.toExtend<LoggingResourceAdaptorOptions>();
  expectTypeOf<{ autoFlush: true }>().not.toExtend<LoggingResourceAdaptorOptions>();
  expectTypeOf<{ stackSampleBytes: 0 }>().toExtend<RecordingResourceAdaptorOptions>();
  expectTypeOf<{ recording: string }>().not.toExtend<RecordingResourceAdaptorOptions>();
  expectTypeOf<{ kind: 'top-bits' }>().toExtend<RoundingResourceAdaptorOptions>();
  expectTypeOf<{ kind: 'multiple'; multipleBytes: 5; deallocationEvents: 'off' }>().toExtend<RoundingResourceAdaptorOptions>();
  expectTypeOf<{ kind: 'multiple' }>().not.toExtend<RoundingResourceAdaptorOptions>();
  expectTypeOf<{ kind: 'divisions'; bits: 4 }>().not.toExtend<RoundingResourceAdaptorOptions>();
  expectTypeOf<AllocationStatistics['bytes']>().toEqualTypeOf<{
    readonly current: number;
    readonly peak: number;
    readonly total: number;
  }>();
});

test('a run returns the result of its function, and keep returns its argument', () => {
  const use = (cache: CachingMemoryResource, buffer: DeviceBuffer, pointer: number) => {
    expectTypeOf(cache.run(() => 5)).toEqualTypeOf<number>();
    expectTypeOf(cache.run(async () => buffer)).toEqualTypeOf<Promise<DeviceBuffer>>();
    expectTypeOf(cache.keep(buffer)).toEqualTypeOf<DeviceBuffer>();
    expectTypeOf(cache.keep(pointer)).toEqualTypeOf<number>();
    // @ts-expect-error: it has no pointer
    cache.keep({ byteLength: 5 });
  };
  expectTypeOf(use).toBeFunction();
});

test('a range is not an array, and a copy to the host returns the array that it fills', () => {
  const use = (buffer: DeviceBuffer, array: Float32Array, bytes: ArrayBuffer) => {
    expectTypeOf(buffer.toHost()).toEqualTypeOf<Promise<Uint8Array<ArrayBuffer>>>();
    expectTypeOf(buffer.toHost({ byteOffset: 4 })).toEqualTypeOf<Promise<Uint8Array<ArrayBuffer>>>();
    expectTypeOf(buffer.toHost(array, { byteOffset: 4 })).toEqualTypeOf<Promise<Float32Array>>();
    // @ts-expect-error: an ArrayBuffer is not a range
    buffer.toHost(bytes);
    // @ts-expect-error: a buffer is not a range
    buffer.toHost(buffer);
    // @ts-expect-error: an array is not a range
    buffer.fill(0, array);
    // @ts-expect-error: an array is not an options object
    buffer.copyFrom(array, array);
    // @ts-expect-error: an array is not an options object
    buffer.toHostSync(array, array);
    // @ts-expect-error: work queued by resize comes after every event
    buffer.resize(5, {} as Event);
  };
  expectTypeOf(use).toBeFunction();
});
