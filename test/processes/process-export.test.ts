import { afterEach, beforeEach, expect, test } from 'vitest';
import { interpose } from '../../src/driver/native.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { ProcessExport } from '../../src/processes/process-export.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';

const bytes = 4096;
let resource: CudaMemoryResource;
let stream: Stream;
let pointer: number;
/** The calls of the addon that other processes notice. */
let calls: string[];

beforeEach(() => {
  resource = new CudaMemoryResource();
  stream = new Stream({ nonBlocking: true });
  pointer = resource.allocate(bytes, stream);
  calls = [];
  interpose(({ reopenExport, endExport }) => ({
    reopenExport: (number) => {
      calls.push('reopen');
      reopenExport(number);
    },
    endExport: (number) => {
      calls.push('end');
      endExport(number);
    },
  }));
});

afterEach(() => {
  interpose();
  resource.deallocate(pointer, bytes, stream);
  stream.dispose();
});

test.skipIf(process.platform !== 'linux')('an export is opened again for the last of its closings, and ended once', () => {
  const exported = ProcessExport.begin({ pointer, bytes, byteLength: bytes, alignment: 256 }, stream) as ProcessExport;
  expect([exported.close(), exported.closeIfUnused()]).toEqual([true, true]);
  exported.reopen();
  expect(calls).toEqual([]);
  exported.reopen();
  expect(calls).toEqual(['reopen']);
  expect(exported.closeIfUnused()).toBe(true);
  exported.end();
  exported.end();
  expect(calls).toEqual(['reopen', 'end']);
  expect(exported.isUsed).toBe(false);
});
