import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { StatisticsResourceAdaptor } from '../../src/adaptors/pass-through/statistics-resource-adaptor.js';
import { CudaMemoryResource, DeviceBuffer, PoolMemoryResource, Stream } from '../../src/index.js';
import { Recording, RecordingResourceAdaptor } from '../../src/recording/index.js';
import { eventsOf, readRecording } from '../support/read-recording.js';

let folder: string;
let stream: Stream;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'cistern-labels-'));
  stream = new Stream();
});
afterAll(() => {
  stream.dispose();
  rmSync(folder, { recursive: true });
});

describe('the label of a buffer', () => {
  test('is recorded with its memory, wherever that moves, in the layer closest to the program', async () => {
    const file = join(folder, 'labels.cistern');
    const pointers: number[] = [];
    {
      using recording = new Recording({ file });
      using upstream = new CudaMemoryResource();
      using pool = new PoolMemoryResource(new RecordingResourceAdaptor(upstream, { recording }));
      const resource = new StatisticsResourceAdaptor(new RecordingResourceAdaptor(pool, { recording }));
      using buffer = new DeviceBuffer(1000, { resource, stream, label: 'weights' });
      pointers.push(buffer.ptr);
      buffer.resize(100_000);
      pointers.push(buffer.ptr);
      buffer.label = 'gradients';
      buffer.label = undefined;
      expect(buffer.label).toBeUndefined();
      buffer.resize(200_000);
      buffer.dispose();
      buffer.label = 'gone';
      using empty = new DeviceBuffer(0, { resource, stream, label: 'empty' });
      expect(empty.label).toBe('empty');
    }
    const run = await readRecording(file);
    const labels = eventsOf(run).filter(({ kind }) => kind === 'label');
    expect(labels.map(({ layer, first, second }) => [layer, first, run.labels[second]])).toEqual([
      ['pool', pointers[0], 'weights'],
      ['pool', pointers[1], 'weights'],
      ['pool', pointers[1], 'gradients'],
    ]);
  });

  test('is kept if nothing records, and refused if it is not a string', () => {
    using resource = new CudaMemoryResource();
    using buffer = new DeviceBuffer(10, { resource, stream });
    expect(buffer.label).toBeUndefined();
    buffer.label = 'x';
    expect(() => {
      buffer.label = 5 as unknown as string;
    }).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
    expect(buffer.label).toBe('x');
  });

  test('may be set after the recording adaptor is disposed', () => {
    using upstream = new CudaMemoryResource();
    const recorded = new RecordingResourceAdaptor(upstream, { file: join(folder, 'ended.cistern') });
    const pool = new PoolMemoryResource(recorded);
    const buffer = new DeviceBuffer(10, { resource: pool, stream });
    pool.dispose();
    recorded.dispose();
    buffer.label = 'x';
    expect(buffer.label).toBe('x');
    expect(buffer.isDisposed).toBe(true);
  });
});
