import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, Writable } from 'node:stream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { logHeader } from '../../src/files/csv-rows.js';
import { LogWriter } from '../../src/files/log-writer.js';
import {
  CudaAsyncMemoryResource,
  LoggingResourceAdaptor,
  type LoggingResourceAdaptorOptions,
  OutOfMemoryError,
  Stream,
} from '../../src/index.js';
import { runModule } from '../support/run-module.js';
import { SpyResource } from '../support/spy-resource.js';

let folder: string;
let stream: Stream;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'cistern-log-'));
  stream = new Stream();
});
afterAll(() => {
  stream.dispose();
  rmSync(folder, { recursive: true });
});

let files = 0;
const newFile = () => join(folder, `${files++}.csv`);
const linesOf = (file: string) => readFileSync(file, 'utf8').trimEnd().split('\n');
/** The rows of a log without thread and time. */
const rowsOf = (file: string) =>
  linesOf(file)
    .slice(1)
    .map((line) => line.split(',').slice(2).join(','));

/** Accepts a given number of chunks, then fails. */
class FailingWritable extends Writable {
  readonly chunks: string[] = [];
  readonly #capacity: number;

  constructor(capacity: number) {
    super();
    this.#capacity = capacity;
  }

  override _write(chunk: Buffer, _encoding: string, done: (error?: Error) => void): void {
    if (this.chunks.length < this.#capacity) {
      this.chunks.push(chunk.toString());
      done();
    } else {
      done(new Error('the pipe broke'));
    }
  }
}

describe('the rows of LoggingResourceAdaptor', () => {
  test('are those of RMM: header, thread, time of day, action, pointer, size, stream', () => {
    const file = newFile();
    const upstream = new SpyResource();
    const resource = new LoggingResourceAdaptor(upstream, { file });
    const pointer = resource.allocate(1024, stream);
    upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 99_999_999_999, path: ['device'] });
    expect(() => resource.allocate(99_999_999_999, Stream.legacyDefault())).toThrow(OutOfMemoryError);
    resource.deallocate(pointer, 1024, Stream.perThreadDefault());
    resource.dispose();

    const [header, ...rows] = linesOf(file);
    expect(header).toBe('Thread,Time,Action,Pointer,Size,Stream');
    expect(rows).toHaveLength(3);
    for (const row of rows) expect(row).toMatch(/^\d+,\d\d:\d\d:\d\d\.\d{6},[a-z ]+,(0x[0-9a-f]+|\(nil\)),\d+,0x[0-9a-f]+$/);
    const handle = `0x${stream.nativeHandle.toString(16)}`;
    expect(rowsOf(file)).toEqual([
      `allocate,0x${pointer.toString(16)},1024,${handle}`,
      'allocate failure,(nil),99999999999,0x1',
      `free,0x${pointer.toString(16)},1024,0x2`,
    ]);
  });

  test('name the current thread', () => {
    const file = newFile();
    using resource = new LoggingResourceAdaptor(new SpyResource(), { file });
    resource.allocate(1, stream);
    resource.flush();
    const thread = Number(linesOf(file)[1]?.split(',')[0]);
    // On Linux, the main thread's id is that of the process.
    expect(thread).toBe(process.pid);
  });

  test('have the local time of day, which never goes back', () => {
    const file = newFile();
    using resource = new LoggingResourceAdaptor(new SpyResource(), { file });
    const before = new Date();
    for (let i = 0; i < 5000; i++) resource.allocate(1, stream);
    resource.flush();
    const times = linesOf(file)
      .slice(1)
      .map((line) => line.split(',')[1] as string);
    const [hours, minutes, seconds] = (times[0] as string).split(':').map(Number) as [number, number, number];
    const start = new Date(before);
    start.setHours(hours, minutes, Math.floor(seconds), (seconds % 1) * 1000);
    expect(Math.abs(start.getTime() - before.getTime())).toBeLessThan(1000);
    expect(times).toEqual([...times].sort());
    expect(new Set(times).size).toBeGreaterThan(10);
  });

  test('write every pointer and size as printf would', () => {
    const file = newFile();
    const upstream = new SpyResource();
    const pointers = [
      1,
      15,
      16,
      255,
      4096,
      0xabc00,
      0xabc,
      0xffff_ffff,
      2 ** 32,
      2 ** 32 + 10,
      2 ** 32 + 2560,
      0x7f3e_8c00_0000,
      2 ** 48,
      2 ** 52 + 1,
      2 ** 53 - 256,
      Number.MAX_SAFE_INTEGER,
    ];
    const sizes = [
      ...[0, 1, 9, 10, 99, 100, 999, 1000, 1001, 65_536, 999_999, 1_000_000, 1_000_001, 12_345_678, 999_999_999],
      ...[1e9, 1e9 + 1, 2 ** 31, 2 ** 32 + 7, 123_456_789_012, 1e12, 2 ** 50, 1e15 + 1, Number.MAX_SAFE_INTEGER],
    ];
    let pointer = 0;
    upstream.allocate = () => pointer;
    using resource = new LoggingResourceAdaptor(upstream, { file });
    const expected: string[] = [];
    const handle = `0x${stream.nativeHandle.toString(16)}`;
    for (const bytes of sizes) {
      for (pointer of pointers) {
        const text = `0x${pointer.toString(16)},${bytes},${handle}`;
        // No resource may return another pointer.
        if (pointer % 256 === 0 && pointer <= Number.MAX_SAFE_INTEGER - bytes) {
          resource.allocate(bytes, stream);
          expected.push(`allocate,${text}`);
        }
        resource.deallocate(pointer, bytes, stream);
        expected.push(`free,${text}`);
      }
    }
    resource.flush();
    expect(rowsOf(file)).toEqual(expected);
  });

  test('exist for zero bytes and the null pointer', () => {
    const file = newFile();
    using resource = new LoggingResourceAdaptor(new SpyResource(), { file });
    resource.deallocate(resource.allocate(0, stream), 0, stream);
    resource.flush();
    const handle = `0x${stream.nativeHandle.toString(16)}`;
    expect(rowsOf(file)).toEqual([`allocate,(nil),0,${handle}`, `free,(nil),0,${handle}`]);
  });

  test('do not exist for invalid arguments and refused frees', () => {
    const file = newFile();
    using upstream = new CudaAsyncMemoryResource();
    using resource = new LoggingResourceAdaptor(upstream, { file });
    expect(() => resource.allocate(-1, stream)).toThrow(RangeError);
    expect(() => resource.allocate('5' as unknown as number, stream)).toThrow(TypeError);
    expect(() => resource.allocate(5, stream, 3)).toThrow(RangeError);
    expect(() => resource.allocate(5, {} as Stream)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
    expect(() => resource.deallocate(4096, 5, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FOREIGN_POINTER' }));
    const gone = new Stream();
    gone.dispose();
    expect(() => resource.allocate(5, gone)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    resource.flush();
    expect(rowsOf(file)).toEqual([]);
  });

  test('name their own stream when the upstream runs a function that allocates on another', () => {
    const file = newFile();
    const upstream = new SpyResource();
    using resource = new LoggingResourceAdaptor(upstream, { file });
    upstream.meanwhile = () => resource.allocate(2, Stream.legacyDefault());
    resource.allocate(1, stream);
    resource.flush();
    expect(rowsOf(file).map((row) => row.split(',').slice(2).join())).toEqual(['2,0x1', `1,0x${stream.nativeHandle.toString(16)}`]);
  });
});

describe('a log file', () => {
  test('replaces an existing one', () => {
    const file = newFile();
    writeFileSync(file, 'what was here');
    new LoggingResourceAdaptor(new SpyResource(), { file }).dispose();
    expect(readFileSync(file, 'utf8')).toBe('Thread,Time,Action,Pointer,Size,Stream\n');
  });

  test('belongs to one log at a time, whatever it is called', () => {
    const file = newFile();
    const link = newFile();
    symlinkSync(file, link);
    const first = new LoggingResourceAdaptor(new SpyResource(), { file, autoFlush: true });
    first.allocate(1, stream);
    const before = readFileSync(file, 'utf8');
    for (const path of [file, link]) {
      expect(() => new LoggingResourceAdaptor(new SpyResource(), { file: path })).toThrow(
        expect.objectContaining({ code: 'ERR_CISTERN_LOG_WRITE', message: expect.stringContaining('another log is being written to it') }),
      );
    }
    first.allocate(2, stream);
    expect(readFileSync(file, 'utf8')).toMatch(before);
    expect(rowsOf(file)).toHaveLength(2);
    first.dispose();
    new LoggingResourceAdaptor(new SpyResource(), { file: link }).dispose();
    expect(rowsOf(file)).toEqual([]);
    for (let i = 0; i < 2; i++) new LoggingResourceAdaptor(new SpyResource(), { file: '/dev/null' });
  });

  test('is written at flush and dispose, and whenever the buffer is full', () => {
    const file = newFile();
    const resource = new LoggingResourceAdaptor(new SpyResource(), { file });
    resource.allocate(1, stream);
    expect(readFileSync(file, 'utf8')).toBe('');
    resource.flush();
    expect(linesOf(file)).toHaveLength(2);
    for (let i = 0; i < 10_000; i++) resource.allocate(i, stream);
    expect(linesOf(file).length).toBeGreaterThan(5000);
    resource.dispose();
    expect(rowsOf(file).map((row) => Number(row.split(',')[2]))).toEqual([1, ...Array.from({ length: 10_000 }, (_, i) => i)]);
    expect(() => resource.flush()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });

  test('is written at every row with autoFlush', () => {
    const file = newFile();
    using resource = new LoggingResourceAdaptor(new SpyResource(), { file, autoFlush: true });
    const pointer = resource.allocate(1, stream);
    expect(rowsOf(file)).toHaveLength(1);
    resource.deallocate(pointer, 1, stream);
    expect(rowsOf(file)).toHaveLength(2);
  });

  test('that cannot be opened is an error with a code and a cause', () => {
    const file = join(folder, 'no', 'such', 'folder.csv');
    expect(() => new LoggingResourceAdaptor(new SpyResource(), { file })).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_LOG_WRITE',
        message: expect.stringContaining(file),
        cause: expect.objectContaining({ code: 'ENOENT' }),
      }),
    );
  });

  test('on a full disk stops allocations before the upstream is called, and stops no free', () => {
    const upstream = new SpyResource();
    const resource = new LoggingResourceAdaptor(upstream, { file: '/dev/full' });
    const live: number[] = [];
    const full = expect.objectContaining({ code: 'ERR_CISTERN_LOG_WRITE', cause: expect.objectContaining({ code: 'ENOSPC' }) });
    expect(() => {
      while (live.length < 10_000) live.push(resource.allocate(1, stream));
    }).toThrow(full);
    expect(upstream.alignments).toHaveLength(live.length);
    expect(() => resource.allocate(1, stream)).toThrow(full);
    expect(upstream.alignments).toHaveLength(live.length);
    for (const pointer of live) resource.deallocate(pointer, 1, stream);
    expect(upstream.fences).toHaveLength(live.length);
    expect(() => resource.flush()).toThrow(full);
    expect(() => resource.dispose()).toThrow(full);
    resource.dispose();
  });

  test('gets each byte once if writing fails after a part', () => {
    let text = '';
    const target = {
      write(bytes: Uint8Array): number {
        if (text.length === 5) {
          text += '|';
          throw new Error('the disk is full');
        }
        const taken = text === '' ? bytes.subarray(0, 5) : bytes;
        text += Buffer.from(taken).toString();
        return taken.length;
      },
      close(): void {},
    };
    const writer = new LogWriter(target, false);
    expect(() => writer.flush()).toThrow('full');
    writer.close();
    expect(text).toBe(`${logHeader.slice(0, 5)}|${logHeader.slice(5)}\n`);
  });

  test('is complete when the process exits without dispose', () => {
    const file = newFile();
    const { status, stderr } = runModule(`
      import { CudaMemoryResource, LoggingResourceAdaptor, Stream } from 'cistern';
      const resource = new LoggingResourceAdaptor(new CudaMemoryResource(), { file: ${JSON.stringify(file)} });
      new LoggingResourceAdaptor(resource, { file: '/dev/null' }).dispose();
      const stream = new Stream();
      for (let i = 1; i <= 3; i++) resource.allocate(i, stream);
    `);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(rowsOf(file)).toHaveLength(3);
  });

  test('that cannot be written when the process exits makes it fail, and does not keep others from being written', () => {
    const file = newFile();
    const { status, stderr } = runModule(`
      import { CudaMemoryResource, LoggingResourceAdaptor, Stream } from 'cistern';
      const lost = new LoggingResourceAdaptor(new CudaMemoryResource(), { file: '/dev/full' });
      new LoggingResourceAdaptor(lost, { file: ${JSON.stringify(file)} }).allocate(1, new Stream());
    `);
    expect(status).not.toBe(0);
    expect(stderr).toContain('ERR_CISTERN_LOG_WRITE');
    expect(rowsOf(file)).toHaveLength(1);
  });

  test('leaves no listener behind', () => {
    const before = process.listenerCount('exit');
    const loggers = [0, 1, 2].map(() => new LoggingResourceAdaptor(new SpyResource(), { file: newFile() }));
    expect(process.listenerCount('exit')).toBeLessThanOrEqual(before + 1);
    for (const logger of loggers) logger.dispose();
    expect(process.listenerCount('exit')).toBeLessThanOrEqual(before);
  });
});

describe('a log to a stream', () => {
  test('gets whole rows, and is not ended', async () => {
    const target = new PassThrough();
    const resource = new LoggingResourceAdaptor(new SpyResource(), { stream: target });
    resource.allocate(1, stream);
    resource.flush();
    resource.allocate(2, stream);
    resource.dispose();
    expect(target.writableEnded).toBe(false);
    expect(target.listenerCount('error')).toBe(new PassThrough().listenerCount('error'));
    target.end();
    let text = '';
    for await (const chunk of target) text += chunk;
    expect(text.split('\n').map((line) => line.split(',')[4])).toEqual(['Size', '1', '2', undefined]);
  });

  test('that fails makes the next flush, allocation and dispose fail, but no free', async () => {
    const upstream = new SpyResource();
    const target = new FailingWritable(1);
    const resource = new LoggingResourceAdaptor(upstream, { stream: target, autoFlush: true });
    const pointer = resource.allocate(1, stream);
    resource.deallocate(pointer, 1, stream);
    await new Promise(setImmediate);
    const broken = expect.objectContaining({
      code: 'ERR_CISTERN_LOG_WRITE',
      cause: expect.objectContaining({ message: 'the pipe broke' }),
    });
    expect(() => resource.flush()).toThrow(broken);
    resource.deallocate(pointer, 1, stream);
    expect(upstream.fences).toHaveLength(2);
    expect(() => resource.allocate(1, stream)).toThrow(broken);
    expect(upstream.alignments).toHaveLength(1);
    expect(() => resource.dispose()).toThrow(broken);
  });

  test('that has ended is an error too', () => {
    const target = new PassThrough();
    using resource = new LoggingResourceAdaptor(new SpyResource(), { stream: target, autoFlush: true });
    resource.allocate(1, stream);
    target.destroy();
    expect(() => resource.flush()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_LOG_WRITE' }));
    expect(() => resource.dispose()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_LOG_WRITE' }));
  });
});

test.each([{}, { file: 5 }, { stream: {} }, { file: 'a', stream: new PassThrough() }])(
  'LoggingResourceAdaptor refuses the options %o',
  (options) => {
    expect(() => new LoggingResourceAdaptor(new SpyResource(), options as unknown as LoggingResourceAdaptorOptions)).toThrow(
      expect.objectContaining({ code: expect.stringMatching(/^ERR_INVALID_ARG/) }),
    );
  },
);
