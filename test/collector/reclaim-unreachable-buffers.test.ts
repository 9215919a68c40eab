import { beforeEach, describe, expect, it } from 'vitest';
import { ArgumentRangeError } from '../../src/basics/errors.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { reclaimUnreachableBuffers } from '../../src/collector/reclaim-unreachable-buffers.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';
import { runModule } from '../support/run-module.js';

let stream: Stream;
let addresses: AddressCountingResource;

beforeEach(() => {
  stream = Stream.legacyDefault();
  addresses = new AddressCountingResource();
});

function drop(count: number, bytes = 1000): void {
  for (let i = 0; i < count; i++) new DeviceBuffer(bytes, { resource: addresses, stream });
}

describe('without --expose-gc', () => {
  it('a minor collection frees what was dropped just now, in the same job', () => {
    expect(Reflect.get(globalThis, 'gc')).toBeUndefined();
    drop(100);
    expect(reclaimUnreachableBuffers('minor')).toBeGreaterThanOrEqual(99_000);
    expect(addresses.live.size).toBeLessThanOrEqual(1);
    expect(Reflect.get(globalThis, 'gc')).toBeUndefined();
  });

  it('a major collection frees what minor ones have promoted', () => {
    const kept = (() => {
      const buffers = Array.from({ length: 100 }, () => new DeviceBuffer(1000, { resource: addresses, stream }));
      for (let i = 0; i < 3; i++) expect(reclaimUnreachableBuffers('minor')).toBe(0);
      expect(buffers.every((buffer) => addresses.live.has(buffer.ptr))).toBe(true);
      return buffers;
    })();
    kept.length = 0;
    reclaimUnreachableBuffers('minor');
    expect(addresses.live.size).toBeGreaterThan(1);
    reclaimUnreachableBuffers('major');
    expect(addresses.live.size).toBeLessThanOrEqual(1);
  });
});

it('refuses any other kind', () => {
  expect(() => reclaimUnreachableBuffers('full' as never)).toThrow(ArgumentRangeError);
});

it('collects in workers that all do so for the first time at once', () => {
  const { status, stdout, stderr } = runModule(`
    import { once } from 'node:events';
    import { Worker } from 'node:worker_threads';
    const text = \`
      const { parentPort, workerData } = require('node:worker_threads');
      import('cistern').then(({ reclaimUnreachableBuffers }) => {
        Atomics.add(workerData, 0, 1);
        while (Atomics.load(workerData, 0) < 4);
        reclaimUnreachableBuffers('major');
        parentPort.postMessage(typeof gc);
      });\`;
    for (let round = 0; round < 5; round++) {
      const workerData = new Int32Array(new SharedArrayBuffer(4));
      const workers = [1, 2, 3, 4].map(() => new Worker(text, { eval: true, execArgv: [], workerData }));
      console.log(await Promise.all(workers.map(async (worker) => (await once(worker, 'message'))[0])).then(String));
      await Promise.all(workers.map((worker) => worker.terminate()));
    }
  `);
  expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: `${'undefined,'.repeat(4).slice(0, -1)}\n`.repeat(5), stderr: '' });
});
