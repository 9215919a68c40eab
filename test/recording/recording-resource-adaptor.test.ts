import '../../src/tools/every-kind.js';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import {
  ArenaMemoryResource,
  BinningMemoryResource,
  CachingMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  createResourceStack,
  DeviceBuffer,
  FixedSizeMemoryResource,
  KiB,
  LifetimeError,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
  PoolMemoryResource,
  Stream,
} from '../../src/index.js';
import { annotate, Recording, RecordingResourceAdaptor, type RecordingResourceAdaptorOptions } from '../../src/recording/index.js';
import { eventsOf, layersOf, readRecording, rowsOf } from '../support/read-recording.js';
import { folder, newFile, recorded } from '../support/recordings.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

const handleOf = (of: Stream) => `0x${of.nativeHandle.toString(16)}`;

describe('RecordingResourceAdaptor', () => {
  test('records allocations, failures and frees, with their streams and times', async () => {
    const before = performance.now();
    let pointer = 0;
    const run = await recorded((recording) => {
      const upstream = new SpyResource();
      using resource = new RecordingResourceAdaptor(upstream, { recording, layer: 'mine' });
      pointer = resource.allocate(1024, stream);
      upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 99_999_999_999, path: ['device'] });
      expect(() => resource.allocate(99_999_999_999, Stream.legacyDefault())).toThrow(OutOfMemoryError);
      resource.deallocate(pointer, 1024, Stream.perThreadDefault());
      resource.deallocate(resource.allocate(0, stream), 0, stream);
    });
    const elapsed = (performance.now() - before) * 1e6;
    const events = eventsOf(run);
    expect(events.map(({ kind, layer, stream, first, second }) => [kind, layer, stream, first, second])).toEqual([
      ['allocate', 'mine', handleOf(stream), pointer, 1024],
      ['failure', 'mine', '0x1', 0, 99_999_999_999],
      ['free', 'mine', '0x2', pointer, 1024],
      ['allocate', 'mine', handleOf(stream), 0, 0],
      ['free', 'mine', handleOf(stream), 0, 0],
    ]);
    const times = events.map(({ time }) => time);
    expect(times).toEqual([...times].sort((a, b) => a - b));
    expect(times.at(-1)).toBeLessThanOrEqual(elapsed);
    expect(run.threads).toEqual([String(process.pid)]);
  });

  test('holds what is about numbers up to 2^53 - 1', async () => {
    const sizes = [1, 2 ** 31, 2 ** 32 + 7, 2 ** 48, Number.MAX_SAFE_INTEGER - 256];
    const fits = (bytes: number) => (address: number) => address <= Number.MAX_SAFE_INTEGER - bytes;
    const pointersFor = (bytes: number) => [256, 2 ** 31, 2 ** 32 + 256, 2 ** 48, 2 ** 53 - 256].filter(fits(bytes));
    const run = await recorded((recording) => {
      const upstream = new SpyResource();
      let pointer = 0;
      upstream.allocate = () => pointer;
      using resource = new RecordingResourceAdaptor(upstream, { recording });
      for (const bytes of sizes) {
        for (pointer of pointersFor(bytes)) resource.allocate(bytes, stream);
      }
    });
    expect(rowsOf(run)).toEqual(sizes.flatMap((bytes) => pointersFor(bytes).map((pointer) => `allocate spy ${pointer} ${bytes}`)));
  });

  test('records nothing for invalid arguments and refused frees', async () => {
    const run = await recorded((recording) => {
      using upstream = new CudaAsyncMemoryResource();
      using resource = new RecordingResourceAdaptor(upstream, { recording });
      expect(() => resource.allocate(-1, stream)).toThrow(RangeError);
      expect(() => resource.allocate('5' as unknown as number, stream)).toThrow(TypeError);
      expect(() => resource.allocate(5, stream, 3)).toThrow(RangeError);
      expect(() => resource.allocate(5, {} as Stream)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
      expect(() => resource.deallocate(4096, 5, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FOREIGN_POINTER' }));
      expect(() => resource.deallocate(4096n as unknown as number, 5, stream)).toThrow(
        expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }),
      );
      expect(() => resource.deallocate(4096, 5n as unknown as number, stream)).toThrow(
        expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }),
      );
      const gone = new Stream();
      gone.dispose();
      expect(() => resource.allocate(5, gone)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    });
    expect(rowsOf(run)).toEqual([]);
  });

  test('takes back the record of a refused free after later records', async () => {
    const run = await recorded((recording) => {
      const upstream = new SpyResource();
      using resource = new RecordingResourceAdaptor(upstream, { recording });
      resource.allocate(1, stream);
      upstream.failure = new Error('no');
      upstream.meanwhile = () => {
        resource.deallocate(resource.allocate(2, Stream.legacyDefault()), 2, stream);
        resource.label(5, 'x');
      };
      expect(() => resource.deallocate(77, 3, stream)).toThrow('no');
      resource.deallocate(78, 4, stream);
    });
    expect(eventsOf(run).map(({ kind, second, stream }) => [kind, second, stream])).toEqual([
      ['allocate', 1, handleOf(stream)],
      ['allocate', 2, '0x1'],
      ['free', 2, handleOf(stream)],
      ['label', 1, handleOf(stream)],
      ['free', 4, handleOf(stream)],
    ]);
  });

  test('keeps a refused free that was written in the meantime', async () => {
    const run = await recorded((recording) => {
      const upstream = new SpyResource();
      using resource = new RecordingResourceAdaptor(upstream, { recording });
      upstream.failure = new Error('no');
      upstream.meanwhile = () => {
        recording.flush();
        for (let i = 0; i < 20; i++) resource.allocate(i, stream);
      };
      expect(() => resource.deallocate(77, 3, stream)).toThrow('no');
      resource.allocate(20, stream);
    });
    const sizes = eventsOf(run).map(({ kind, second }) => `${kind} ${second}`);
    expect(sizes).toEqual(['free 3', ...Array.from({ length: 21 }, (_, i) => `allocate ${i}`)]);
  });

  test('names its own stream when the upstream runs a function that allocates on another', async () => {
    const run = await recorded((recording) => {
      const upstream = new SpyResource();
      using resource = new RecordingResourceAdaptor(upstream, { recording });
      upstream.meanwhile = () => resource.allocate(2, Stream.legacyDefault());
      resource.allocate(1, stream);
    });
    expect(eventsOf(run).map(({ second, stream }) => [second, stream])).toEqual([
      [2, '0x1'],
      [1, handleOf(stream)],
    ]);
  });

  test('goes on without recording when a host function ends the recording during a call', async () => {
    const upstream = new SpyResource();
    const file = newFile();
    const recording = new Recording({ file });
    using resource = new RecordingResourceAdaptor(upstream, { recording, stackSampleBytes: 1000 });
    const pointer = resource.allocate(1, stream);
    upstream.meanwhile = () => recording.dispose();
    resource.deallocate(pointer, 1, stream);
    resource.deallocate(resource.allocate(5000, Stream.legacyDefault()), 5000, stream);
    resource.label(pointer, 'x');
    expect(upstream.fences).toHaveLength(2);
    expect(rowsOf(await readRecording(file))).toEqual([`allocate spy ${pointer} 1`, `free spy ${pointer} 1`]);
    expect(() => resource.flush()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(() => new RecordingResourceAdaptor(upstream, { recording })).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });

  test('has a failure in the file when the error is thrown', async () => {
    const file = newFile();
    using recording = new Recording({ file });
    const upstream = new SpyResource();
    using resource = new RecordingResourceAdaptor(upstream, { recording });
    upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 9, path: ['device'] });
    let caught: unknown;
    try {
      resource.allocate(9, stream);
    } catch (error) {
      caught = error;
      expect(rowsOf(await readRecording(file))).toEqual(['failure spy 0 9']);
    }
    expect(caught).toBeInstanceOf(OutOfMemoryError);
    expect((caught as OutOfMemoryError).path).toEqual(['RecordingResourceAdaptor', 'device']);
  });

  test('records no stacks unless asked', async () => {
    const run = await recorded((recording) => {
      using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
      resource.allocate(2 ** 40, stream);
    });
    expect(run.stacks).toEqual(['']);
  });

  test('records the stack of each allocation and failure with stackSampleBytes of 0', async () => {
    const run = await recorded((recording) => {
      const upstream = new SpyResource();
      using resource = new RecordingResourceAdaptor(upstream, { recording, stackSampleBytes: 0 });
      const allocateWeights = (bytes: number) => resource.allocate(bytes, stream);
      for (const bytes of [1, 0, 3]) resource.deallocate(allocateWeights(bytes), bytes, stream);
      upstream.failure = new Error('no');
      expect(() => allocateWeights(4)).toThrow('no');
    });
    const events = eventsOf(run);
    const stacked = events.filter(({ stack }) => stack !== '').map(({ kind, second }) => [kind, second]);
    expect(stacked).toEqual([
      ['allocate', 1],
      ['allocate', 0],
      ['allocate', 3],
      ['failure', 4],
    ]);
    expect(events[0]?.stack).toMatch(/^allocateWeights \(.*recording-resource-adaptor\.test\.ts:\d+:\d+\)\n/);
    // The stacks of the loop are equal, and recorded once.
    expect(run.stacks).toHaveLength(3);
  });

  test("leaves cistern's own calls out of a stack", async () => {
    const run = await recorded((recording) => {
      using resource = new RecordingResourceAdaptor(new CudaMemoryResource(), { recording, stackSampleBytes: 0 });
      annotate('step', function trainStep() {
        new DeviceBuffer(100, { resource, stream }).dispose();
      });
    });
    expect(run.stacks[1]).toMatch(/^trainStep /);
    expect(run.stacks[1]).not.toMatch(/src\/(buffers|recording|resource-scope)|async_hooks/);
  });

  test("loses no memory if a stack cannot be captured, and leaves the program's stacks unchanged", async () => {
    const { prepareStackTrace, stackTraceLimit } = Error;
    const run = await recorded((recording) => {
      using resource = new RecordingResourceAdaptor(new CudaMemoryResource(), { recording, stackSampleBytes: 0 });
      try {
        Error.prepareStackTrace = () => {
          throw new Error('not here');
        };
        resource.deallocate(resource.allocate(100, stream), 100, stream);
      } finally {
        Error.prepareStackTrace = prepareStackTrace;
      }
    });
    expect(eventsOf(run).map(({ kind, stack }) => [kind, stack])).toEqual([
      ['allocate', ''],
      ['free', ''],
    ]);
    expect(Error.stackTraceLimit).toBe(stackTraceLimit);
  });

  test('records a stack each time the given number of bytes was allocated', async () => {
    const run = await recorded((recording) => {
      using resource = new RecordingResourceAdaptor(new SpyResource(), { recording, stackSampleBytes: 1000 });
      for (const bytes of [400, 400, 400, 999, 1, 5000, 10]) resource.allocate(bytes, stream);
    });
    expect(eventsOf(run).map(({ second, stack }) => [second, stack !== ''])).toEqual([
      [400, false],
      [400, false],
      [400, true],
      [999, false],
      [1, true],
      [5000, true],
      [10, false],
    ]);
  });

  test('names live allocations', async () => {
    const run = await recorded((recording) => {
      using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
      resource.label(resource.allocate(1, stream), 'weights');
      resource.label(resource.allocate(2, stream), 'größe 🚰');
      resource.label(resource.allocate(3, stream), 'weights');
      expect(() => resource.label(-1, 'x')).toThrow(RangeError);
      expect(() => resource.label(1, 5 as unknown as string)).toThrow(TypeError);
    });
    const labels = eventsOf(run).filter(({ kind }) => kind === 'label');
    expect(labels.map(({ second }) => run.labels[second])).toEqual(['weights', 'größe 🚰', 'weights']);
    expect(labels.map(({ first }) => first)).toEqual(eventsOf(run).flatMap(({ kind, first }) => (kind === 'allocate' ? [first] : [])));
  });

  test.each<[RecordingResourceAdaptorOptions, string]>([
    [{ file: 5 } as never, 'ERR_INVALID_ARG_TYPE'],
    [{ recording: {} } as never, 'ERR_INVALID_ARG_TYPE'],
    [{ layer: 5 } as never, 'ERR_INVALID_ARG_TYPE'],
    [{ stackSampleBytes: -1, file: '/dev/null' }, 'ERR_OUT_OF_RANGE'],
    [{}, 'ERR_INVALID_ARG_VALUE'],
  ])('refuses the options %o', (options, code) => {
    expect(() => new RecordingResourceAdaptor(new SpyResource(), options)).toThrow(expect.objectContaining({ code }));
  });

  test('refuses a recording and a file together, and a file that cannot be opened', () => {
    using recording = new Recording({ file: newFile() });
    expect(() => new RecordingResourceAdaptor(new SpyResource(), { recording, file: newFile() })).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }),
    );
    const file = join(folder, 'no', 'such.cistern');
    expect(() => new RecordingResourceAdaptor(new SpyResource(), { file })).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_LOG_WRITE', cause: expect.objectContaining({ code: 'ENOENT' }) }),
    );
  });
});

describe('adaptors that name the same file', () => {
  test('share a recording, which ends with the last of them', async () => {
    const file = newFile();
    writeFileSync(file, 'what was here');
    using upstream = new CudaMemoryResource();
    const inner = new RecordingResourceAdaptor(upstream, { file });
    const pool = new PoolMemoryResource(inner);
    const outer = new RecordingResourceAdaptor(pool, { file });
    expect(outer.recording).toBe(inner.recording);
    outer.deallocate(outer.allocate(1000, stream), 1000, stream);
    outer.dispose();
    expect(inner.recording.isDisposed).toBe(false);
    pool.dispose();
    inner.dispose();
    inner.dispose();
    expect(inner.recording.isDisposed).toBe(true);
    const run = await readRecording(file);
    expect(layersOf(run)).toEqual(['cuda', 'pool on cuda']);
    expect(eventsOf(run).map(({ kind, layer, second }) => `${kind} ${layer} ${second}`)).toEqual([
      'allocate cuda 1024',
      'growth pool 1024',
      'allocate pool 1000',
      'free pool 1000',
      'eventRecord cuda 0',
      'eventWait cuda 0',
      'release pool 1024',
      'free cuda 1024',
    ]);
    const again = new RecordingResourceAdaptor(upstream, { file });
    expect(again.recording).not.toBe(inner.recording);
    again.dispose();
  });

  test('are made by specifications', async () => {
    const file = newFile();
    const stack = createResourceStack(
      `recording(limiting(recording(cuda, file="${file}"), limitBytes=1MiB), file="${file}", layer=program)`,
    );
    stack.resource.deallocate(stack.resource.allocate(100, stream), 100, stream);
    stack.dispose();
    expect(layersOf(await readRecording(file))).toEqual(['cuda', 'program on cuda']);
    expect(() => createResourceStack('recording(cuda)')).toThrow(/CISTERN_LOG_FILE/);
  });
});

describe('a pooling resource below', () => {
  const poolingResources: readonly [string, (upstream: MemoryResource) => MemoryResource][] = [
    ['pool', (upstream) => new PoolMemoryResource(upstream, { initialBytes: 64 * KiB })],
    ['arena', (upstream) => new ArenaMemoryResource(upstream, { arenaBytes: 4 * MiB })],
    ['monotonic', (upstream) => new MonotonicMemoryResource(upstream, { initialBytes: 64 * KiB })],
    ['fixed-size', (upstream) => new FixedSizeMemoryResource(upstream, { blockBytes: 128 * KiB, blocksToPreallocate: 2 })],
    ['caching', (upstream) => new CachingMemoryResource(upstream)],
  ];

  test.each(poolingResources)('has its growth recorded, from what it holds to what it gives back at its end: %s', async (name, create) => {
    let growths = 0;
    const run = await recorded((recording) => {
      using upstream = new CudaMemoryResource();
      using pool = create(new RecordingResourceAdaptor(upstream, { recording })) as MemoryResource & {
        statistics(): { growths: number; releases: number };
        run?(fn: () => void): void;
      };
      const resource = new RecordingResourceAdaptor(pool, { recording });
      const use = () => {
        for (const bytes of [1000, 100_000]) {
          const pointer = resource.allocate(bytes, stream);
          resource.deallocate(pointer, bytes, stream);
        }
      };
      pool.run === undefined ? use() : pool.run(use);
      growths = pool.statistics().growths;
    });
    expect(layersOf(run).sort()).toEqual(['cuda', `${name} on cuda`].sort());
    const events = eventsOf(run);
    const at = (kind: string, layer: string) =>
      events.flatMap((event) => (event.kind === kind && event.layer === layer ? [`${event.first} ${event.second}`] : []));
    expect(growths).toBeGreaterThan(0);
    expect(at('growth', name)).toHaveLength(growths);
    // The pooling resource's growth is what the layer below allocates, and everything is given
    // back.
    expect(at('growth', name)).toEqual(at('allocate', 'cuda'));
    expect(at('release', name).sort()).toEqual(at('growth', name).sort());
    expect(at('free', 'cuda')).toEqual(at('release', name));
    expect(at('free', name)).toEqual(at('allocate', name));
  });

  test('has a layer even below adaptors that pass calls on, and each bin has one', async () => {
    const run = await recorded((recording) => {
      using upstream = new CudaMemoryResource();
      using pool = new PoolMemoryResource(upstream);
      using binning = new BinningMemoryResource(pool, { bins: [1024, 4096], blocksToPreallocate: 1 });
      using resource = new RecordingResourceAdaptor(new LimitingResourceAdaptor(binning, { limitBytes: MiB }), { recording });
      resource.deallocate(resource.allocate(5000, stream), 5000, stream);
    });
    expect(layersOf(run)).toEqual(['fixed-size on pool', 'fixed-size on pool', 'limiting on pool', 'pool']);
    const growths = eventsOf(run).filter(({ kind }) => kind === 'growth');
    expect(growths.map(({ layer, second }) => [layer, second])).toEqual(
      expect.arrayContaining([
        ['fixed-size', 1024],
        ['fixed-size', 4096],
      ]),
    );
  });

  test('shares its layer with all adaptors directly above it, and is observed once', async () => {
    const run = await recorded((recording) => {
      using upstream = new CudaMemoryResource();
      using pool = new PoolMemoryResource(upstream);
      using first = new RecordingResourceAdaptor(pool, { recording, layer: 'mine' });
      using second = new RecordingResourceAdaptor(pool, { recording });
      const pointer = first.allocate(1000, stream);
      first.dispose();
      second.deallocate(pointer, 1000, stream);
    });
    expect(run.layers).toEqual([{ name: 'mine', upstream: undefined }]);
    expect(eventsOf(run).filter(({ kind }) => kind === 'growth')).toHaveLength(1);
  });

  test('begins with what it holds, block by block of its upstream', async () => {
    const run = await recorded((recording) => {
      using upstream = new CudaMemoryResource();
      using pool = new PoolMemoryResource(upstream, { initialBytes: 64 * KiB });
      const pointers = [100, 200, 64 * KiB].map((bytes) => pool.allocate(bytes, stream));
      using resource = new RecordingResourceAdaptor(pool, { recording });
      expect(pointers).toHaveLength(3);
      expect(resource.isEqual(pool)).toBe(false);
    });
    const growths = eventsOf(run).filter(({ kind }) => kind === 'growth');
    expect(growths.map(({ second }) => second)).toEqual([64 * KiB, 64 * KiB]);
  });

  test('keeps its layer when the adaptor directly above ends', async () => {
    const run = await recorded((recording) => {
      using upstream = new CudaMemoryResource();
      using first = new PoolMemoryResource(upstream);
      using second = new PoolMemoryResource(upstream);
      new RecordingResourceAdaptor(first, { recording }).dispose();
      using resource = new RecordingResourceAdaptor(second, { recording });
      expect(resource.recording).toBe(recording);
    });
    expect(layersOf(run)).toEqual(['pool', 'pool']);
  });

  test('has a block recorded as held again if the upstream refuses it', async () => {
    const run = await recorded((recording) => {
      const upstream = new SpyResource();
      const pool = new PoolMemoryResource(upstream);
      using resource = new RecordingResourceAdaptor(pool, { recording });
      resource.deallocate(resource.allocate(1000, stream), 1000, stream);
      upstream.failure = new Error('no');
      expect(() => pool.trim(stream)).toThrow('no');
      upstream.failure = new Error('no');
      expect(() => pool.dispose()).toThrow('no');
      pool.dispose();
    });
    const kinds = eventsOf(run).map(({ kind }) => kind);
    expect(kinds.filter((kind) => kind === 'growth' || kind === 'release')).toEqual([
      'growth',
      'release',
      'growth',
      'release',
      'growth',
      'release',
    ]);
  });

  test('keeps a block whose stream ends while it is allocated', async () => {
    const ending = new Stream({ nonBlocking: true });
    const upstream = new SpyResource();
    upstream.meanwhile = () => ending.dispose();
    const run = await recorded((recording) => {
      using pool = new PoolMemoryResource(upstream);
      using resource = new RecordingResourceAdaptor(pool, { recording });
      expect(() => resource.allocate(1000, ending)).toThrow(LifetimeError);
      pool.validate();
      expect(pool.reservedBytes).toBe(1024);
    });
    expect(eventsOf(run).map(({ kind, stream }) => `${kind} ${stream}`)).toContain('growth host');
  });

  test('grows as before after the recording has ended', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream);
    const file = newFile();
    for (let i = 0; i < 3; i++) new RecordingResourceAdaptor(pool, { file }).dispose();
    pool.deallocate(pool.allocate(1000, stream), 1000, stream);
    expect(pool.trim(stream)).toBe(1024);
  });
});

describe('the layers of a recording', () => {
  test('are two if an adaptor is directly above another', async () => {
    const run = await recorded((recording) => {
      using inner = new RecordingResourceAdaptor(new CudaMemoryResource(), { recording });
      using outer = new RecordingResourceAdaptor(inner, { recording });
      outer.deallocate(outer.allocate(5, stream), 5, stream);
    });
    expect(layersOf(run)).toEqual(['cuda', 'recording on cuda']);
    expect(eventsOf(run).map(({ kind, layer }) => `${kind} ${layer}`)).toEqual([
      'allocate cuda',
      'allocate recording',
      'free recording',
      'free cuda',
    ]);
  });

  test('pass to the next resource of the same name and upstream', async () => {
    const run = await recorded((recording) => {
      using upstream = new CudaMemoryResource();
      using bottom = new RecordingResourceAdaptor(upstream, { recording });
      for (let i = 0; i < 400; i++) {
        using pool = new PoolMemoryResource(bottom);
        using resource = new RecordingResourceAdaptor(new LimitingResourceAdaptor(pool, { limitBytes: MiB }), { recording });
        resource.deallocate(resource.allocate(1000, stream), 1000, stream);
      }
    });
    expect(layersOf(run)).toEqual(['cuda', 'limiting on pool', 'pool on cuda']);
  });

  test('are at most 255, the last of which stands for all later ones', async () => {
    const run = await recorded((recording) => {
      const upstream = new SpyResource();
      const adaptors = Array.from({ length: 300 }, (_, i) => new RecordingResourceAdaptor(upstream, { recording, layer: `layer ${i}` }));
      for (const [i, adaptor] of adaptors.entries()) adaptor.allocate(i, stream);
      for (const adaptor of adaptors) adaptor.dispose();
    });
    expect(run.layers).toHaveLength(255);
    expect(eventsOf(run).map(({ layer }) => layer)).toEqual(
      Array.from({ length: 300 }, (_, i) => (i < 254 ? `layer ${i}` : '(more layers)')),
    );
  });
});
