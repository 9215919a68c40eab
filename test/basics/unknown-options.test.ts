import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import ts from 'typescript';
import { afterAll, expect, test } from 'vitest';
import { fromCudaArrayInterface, toCudaArrayInterface, toDLPack, wrapMemory } from '../../src/interchange/index.js';
import { openBuffer } from '../../src/processes/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { readReportRun } from '../../src/tools/report/read-report-run.js';
import { attachBuffer } from '../../src/workers/index.js';
import { exampleOf } from '../support/kind-stacks.js';
import * as cistern from '../support/package.js';

const {
  ArenaMemoryResource,
  BinningMemoryResource,
  CallbackMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  DeviceBuffer,
  Event,
  FailureCallbackResourceAdaptor,
  FallbackResourceAdaptor,
  HostMemoryResource,
  LimitingResourceAdaptor,
  LoggingResourceAdaptor,
  ManagedMemoryResource,
  MonotonicMemoryResource,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Recording,
  RecordingResourceAdaptor,
  ResourceStack,
  RoundingResourceAdaptor,
  Stream,
  VirtualMemoryResource,
} = cistern;

const folder = mkdtempSync(join(tmpdir(), 'cistern-options-'));
afterAll(() => rmSync(folder, { recursive: true }));
const file = join(folder, 'file');
const stream = Stream.legacyDefault();
const cuda = new CudaMemoryResource();
const managed = new ManagedMemoryResource();
const pool = new PoolMemoryResource(cuda);
const pinned = new PinnedHostMemoryResource();
const spilling = new cistern.SpillingResourceAdaptor(cuda, pinned);
const spillable = new cistern.SpillableBuffer(64, { stream, resource: spilling });
const cudaAsync = new CudaAsyncMemoryResource();
const buffer = new DeviceBuffer(64, { resource: cuda, stream });
const log = await cistern.readAllocationLog(cistern.generateLog('small-hot', { events: 10 }));
const csv = () => cistern.generateLog('small-hot', { events: 10 });

/**
 * Kinds that are not constructed from an upstream and options, or whose option names depend on
 * another option.
 */
const named = ['fallback', 'per-device', 'planned', 'rounding', 'spilling'];

/** The constructor of an adaptor: it checks the names of its options before it uses them. */
function takerOf(kind: cistern.ResourceKind): [string, (bogus: unknown) => unknown] {
  const adaptor = cistern.createResource(exampleOf(kind)) as cistern.MemoryResourceAdaptor;
  const type = adaptor.constructor;
  return [`${type.name}Options`, (bogus) => Reflect.construct(type, [adaptor.upstream, bogus])];
}

/** What takes options: the name of their interface, and a call with extra ones. */
// biome-ignore lint/suspicious/noExplicitAny: what is passed is wrong on purpose
const takers: readonly [string, (bogus: any) => unknown][] = [
  ...cistern.resourceKinds.filter(({ role, name }) => role !== 'upstream' && !named.includes(name)).map(takerOf),
  ['AccountOptions', (bogus) => new cistern.Account({ name: 'tenant', ...bogus })],
  ['AccountOptions', (bogus) => cistern.withQuota({ name: 'tenant', ...bogus }, () => {})],
  ['AttachOptions', (bogus) => attachBuffer({ kind: 'cistern-buffer', number: 1, nonce: 1 }, { stream, ...bogus })],
  ['OpenOptions', (unknown) => openBuffer(new Uint8Array(56), { stream, ...unknown })],
  ['Bin', (bogus) => new BinningMemoryResource(cuda, { bins: [{ bytes: 512, resource: cuda, ...bogus }] })],
  ['BlockingBufferTransferOptions', (bogus) => buffer.to('host', bogus)],
  ['BufferAllocation', (bogus) => DeviceBuffer.adopt({ ptr: 256, byteLength: 1, resource: cuda, stream, ...bogus })],
  ['BufferCopyOptions', (bogus) => buffer.copyFrom(new Uint8Array(4), bogus)],
  ['BufferCopyOptions', (bogus) => buffer.copyFromSync(new Uint8Array(4), bogus)],
  ['BufferCopyOptions', (bogus) => buffer.copyTo(new DeviceBuffer(64, { resource: cuda, stream }), bogus)],
  ['BufferTransferOptions', (bogus) => buffer.toAsync('host', bogus)],
  ['ByteRange', (bogus) => buffer.fill(0, bogus)],
  ['ByteRange', (bogus) => buffer.toHost(bogus)],
  ['ByteRange', (bogus) => buffer.toHost(new Uint8Array(1), bogus)],
  ['ByteRange', (bogus) => buffer.toHostSync(undefined, bogus)],
  [
    'CallbackMemoryResourceOptions',
    (bogus) =>
      new CallbackMemoryResource(
        () => 0,
        () => {},
        bogus,
      ),
  ],
  ['CheckOrderOptions', (bogus) => cistern.checkOrder(bogus)],
  ['ConvertLogOptions', (bogus) => cistern.convertLog(csv(), file, { to: 'recording', ...bogus })],
  ['CreateResourceOptions', (bogus) => cistern.createResource('cuda', bogus)],
  ['CreateResourceOptions', (bogus) => cistern.createResourceStack('cuda', bogus)],
  ['CudaArrayInterfaceOptions', (bogus) => toCudaArrayInterface(buffer, { shape: [4], typestr: '<f4', ...bogus })],
  [
    'FromCudaArrayInterfaceOptions',
    (bogus) => fromCudaArrayInterface(toCudaArrayInterface(buffer, { shape: [4], typestr: '<f4' }), { stream, ...bogus }),
  ],
  ['CudaAsyncMemoryResourceOptions', (bogus) => new CudaAsyncMemoryResource(bogus)],
  ['BudgetOptions', (bogus) => cistern.observeBudget(() => {}, bogus)],
  ['ManagedAsyncMemoryResourceOptions', (bogus) => new cistern.ManagedAsyncMemoryResource(bogus)],
  ['PinnedAsyncMemoryResourceOptions', (bogus) => new cistern.PinnedAsyncMemoryResource(bogus)],
  ['KeepingOptions', (bogus) => new cistern.PoolMemoryResource(cuda, bogus)],
  ['DeallocationEventsOption', (bogus) => new FallbackResourceAdaptor(cuda, managed, bogus)],
  ['DeallocationEventsOption', (bogus) => new cistern.PerDeviceResourceAdaptor([cuda], bogus)],
  ['DeviceBufferOptions', (bogus) => new DeviceBuffer(64, { resource: cuda, stream, ...bogus })],
  ['DLPackOptions', (bogus) => toDLPack(buffer, { shape: [4], dtype: 'float32', ...bogus })],
  ['DiffRunsOptions', async (bogus) => cistern.diffRuns(await cistern.readRecordedRun(csv()), await cistern.readRecordedRun(csv()), bogus)],
  [
    'RunEstimatorOptions',
    async (bogus) => {
      const run = await cistern.readRecordedRun(csv());
      return new cistern.RunEstimator(
        [
          { run, value: 1 },
          { run, value: 2 },
        ],
        bogus,
      );
    },
  ],
  ['EarlyCollectionOptions', (bogus) => cistern.configureEarlyCollection(bogus)],
  ['EventOptions', (bogus) => new Event(bogus)],
  ['ExplainFailureOptions', (bogus) => cistern.explainFailure(log, 'cuda', bogus)],
  ['FailureCallbackResourceAdaptorOptions', (bogus) => new FailureCallbackResourceAdaptor(cuda, () => false, bogus)],
  ['FileLogOptions', (bogus) => new LoggingResourceAdaptor(cuda, { file, ...bogus })],
  ['FitOptions', (bogus) => cistern.fitLog(log, 'pool(cuda)', bogus)],
  ['GraphCaptureOptions', (bogus) => new cistern.GraphMemoryResource(cuda).capture(new Stream(), () => {}, bogus)],
  ['GraphMemoryResourceOptions', (bogus) => new cistern.GraphMemoryResource(cuda, bogus)],
  ['GraphInstantiationOptions', (bogus) => cistern.Graph.prototype.instantiate.call({} as cistern.Graph, bogus)],
  ['ForeignStreamOptions', (bogus) => Stream.fromHandle(1, bogus)],
  ['FromDLPackOptions', (bogus) => cistern.fromDLPack(toDLPack(buffer, { shape: [4], dtype: 'float32' }), { stream, ...bogus })],
  ['GenerateLogOptions', (bogus) => cistern.generateLog('small-hot', bogus)],
  ['GlobalArenaMemoryResourceOptions', (bogus) => new cistern.GlobalArenaMemoryResource(bogus)],
  ['ThreadSafeArenaMemoryResourceOptions', (bogus) => new cistern.ThreadSafeArenaMemoryResource(bogus)],
  ['HostViewOptions', (bogus) => buffer.hostView(Uint8Array, bogus)],
  [
    'FollowShareOptions',
    (bogus) => cistern.followShare('a', () => {}, { resource: new LimitingResourceAdaptor(cuda, { limitBytes: 1 }), ...bogus }),
  ],
  ['KeepOptions', (bogus) => cistern.listRegions(bogus)],
  ['LastingMemoryResourceOptions', (bogus) => new cistern.LastingMemoryResource({ region: 'a', bytes: 1, layout: 'a', ...bogus })],
  ['OpenLastingOptions', (bogus) => cistern.LastingMemoryResource.open({ region: 'a', bytes: 1, layout: 'a', ...bogus })],
  ['LoggingResourceAdaptorOptions', (bogus) => new LoggingResourceAdaptor(cuda, { file, ...bogus })],
  ['PlainMemoryResourceOptions', (bogus) => new CudaMemoryResource(bogus)],
  ['PlainMemoryResourceOptions', (bogus) => new HostMemoryResource(bogus)],
  ['PlainMemoryResourceOptions', (bogus) => new ManagedMemoryResource(bogus)],
  ['PinnedHostMemoryResourceOptions', (bogus) => new PinnedHostMemoryResource(bogus)],
  ['PlannedMemoryResourceOptions', (bogus) => new cistern.PlannedMemoryResource(cuda, planAllocations(log), bogus)],
  ['PlanOptions', (bogus) => planAllocations(log, bogus)],
  ['PublishStatisticsOptions', (bogus) => cistern.publishStatistics(bogus)],
  ['ReadAllocationLogOptions', (bogus) => cistern.readAllocationLog(csv(), bogus)],
  ['ReadLogOptions', (bogus) => cistern.readAllocationLog(csv(), bogus)],
  ['ReadRecordedRunOptions', (bogus) => cistern.readRecordedRun(csv(), bogus)],
  ['ReadRecordedRunOptions', (bogus) => readReportRun(csv(), bogus)],
  ['RecastOptions', (bogus) => buffer.recast(managed, bogus)],
  ['RecordingOptions', (bogus) => new Recording({ file, ...bogus })],
  ['RecordingResourceAdaptorOptions', (bogus) => new RecordingResourceAdaptor(cuda, { file, ...bogus })],
  ['RecordReplayOptions', (bogus) => cistern.recordReplay(log, 'cuda', file, bogus)],
  ['ReplayOptions', (bogus) => cistern.replayLog(log, () => cistern.createResourceStack('cuda'), bogus)],
  ['ReserveOptions', (bogus) => new cistern.AdmittingResourceAdaptor(cuda, { limitBytes: cistern.MiB }).reserve(1, bogus)],
  ['ResourceStackOptions', (bogus) => ResourceStack.of(cuda, bogus)],
  ['RoundingResourceAdaptorOptions', (bogus) => new RoundingResourceAdaptor(cuda, { kind: 'top-bits', ...bogus })],
  ['RoundingResourceAdaptorOptions', (bogus) => new RoundingResourceAdaptor(cuda, { kind: 'divisions', divisions: 4, ...bogus })],
  ['RoundingResourceAdaptorOptions', (bogus) => new RoundingResourceAdaptor(cuda, { kind: 'multiple', multipleBytes: 4, ...bogus })],
  ['ServeStatisticsOptions', (bogus) => cistern.serveStatistics(bogus)],
  ['ProcessSleepOptions', (bogus) => cistern.sleepProcess(bogus)],
  ['ProcessWakeOptions', (bogus) => cistern.wakeProcess(bogus)],
  ['ResourceToSleep', (bogus) => cistern.sleepProcess({ resources: [{ resource: new VirtualMemoryResource(), keep: 'host', ...bogus }] })],
  ['SleepOptions', (bogus) => cistern.sleepResource(new VirtualMemoryResource(), { keep: 'host', ...bogus })],
  ['SoftwareDeviceSettings', (bogus) => cistern.configureSoftwareDevice(bogus)],
  ['SpillableBufferCreateOptions', (bogus) => cistern.SpillableBuffer.create(64, { stream, resource: spilling, ...bogus })],
  ['SpillableBufferOptions', (bogus) => new cistern.SpillableBuffer(64, { stream, resource: spilling, ...bogus })],
  ['SpillingResourceAdaptorOptions', (bogus) => new cistern.SpillingResourceAdaptor(cuda, pinned, bogus)],
  ['StreamLogOptions', (bogus) => new LoggingResourceAdaptor(cuda, { stream: process.stderr, ...bogus })],
  ['StreamOptions', (bogus) => new Stream(bogus)],
  ['StreamPoolOptions', (bogus) => new cistern.StreamPool(bogus)],
  ['TrimOptions', (bogus) => pool.trim(stream, bogus)],
  ['TrimOptions', (bogus) => cudaAsync.trim(stream, bogus)],
  ['TrimOptions', (bogus) => new BinningMemoryResource(cuda, { bins: [512] }).trim(stream, bogus)],
  ['TrimOptions', (bogus) => new ArenaMemoryResource(cuda, { arenaBytes: cistern.MiB }).trim(stream, bogus)],
  ['TrimOptions', (bogus) => new MonotonicMemoryResource(cuda).trim(stream, bogus)],
  ['VirtualMemoryResourceOptions', (bogus) => new VirtualMemoryResource(bogus)],
  [
    'WaitOptions',
    async (bogus) => (await new cistern.AdmittingResourceAdaptor(cuda, { limitBytes: cistern.MiB }).reserve(1)).grow(1, bogus),
  ],
  ['WaitOptions', (bogus) => spillable.pin(stream, bogus)],
  ['WaitOptions', (bogus) => cistern.SpillableBuffer.pinAll([spillable], stream, bogus)],
  ['WakeOptions', (bogus) => cistern.wakeResource(new VirtualMemoryResource(), bogus)],
  ['WrapOptions', (bogus) => wrapMemory({ ptr: buffer.ptr, byteLength: 64, stream, ...bogus })],
  ['WriteReportOptions', async (bogus) => cistern.writeReport([await readReportRun(csv())], file, bogus)],
  ['WriteWholeOptions', (bogus) => cistern.writeWhole(file, async () => {}, bogus)],
];

test.each(takers)('%s: an unknown option is refused without any effect', async (_, call) => {
  const device = cistern.Device.get();
  const { freeBytes } = device.memoryInfo();
  let error: unknown;
  try {
    await call({ maxBites: 1 });
  } catch (thrown) {
    error = thrown;
  }
  expect(error).toBeInstanceOf(cistern.ArgumentRangeError);
  expect(error).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE', message: expect.stringMatching(/must not have "maxBites"/) });
  expect(existsSync(file)).toBe(false);
  expect(device.memoryInfo().freeBytes).toBeGreaterThanOrEqual(freeBytes - 4 * cistern.MiB);
});

test('every exported interface of options is tested', () => {
  const entries = sources().filter((path) => path.endsWith('index.ts'));
  const exports = entries.map((entry) => readFileSync(entry, 'utf8')).join('');
  const exported = exports.match(/\b\w+(Options|Settings)\b/g) ?? [];
  const tried = takers.map(([name]) => name);
  expect(exported.filter((name) => !tried.includes(name))).toEqual([]);
});

test('the error names the nearest option, and all options', () => {
  expect(() => new PoolMemoryResource(cuda, { maxBytes: 1 } as never)).toThrow(
    'options must not have "maxBytes", did you mean maximumBytes? it can have idleMilliseconds, keepBytes, name, deallocationEvents, growth, initialBytes, maximumBytes',
  );
  expect(() => new PoolMemoryResource(cuda, { size: 1 } as never)).toThrow(
    'options must not have "size"; it can have idleMilliseconds, keepBytes, name, deallocationEvents, growth, initialBytes, maximumBytes',
  );
  for (const name of ['toString', 'constructor', '__proto__']) {
    const options = Object.defineProperty({}, name, { value: 1, enumerable: true });
    expect(() => new PoolMemoryResource(cuda, options)).toThrow(`options must not have "${name}"`);
  }
});

test('an option of another kind of rounding is refused', () => {
  expect(() => new RoundingResourceAdaptor(cuda, { kind: 'top-bits', divisions: 4 } as never)).toThrow('must not have "divisions"');
});

test('options may come from a prototype and may be undefined', () => {
  const options = Object.create({ initialBytes: 1 * cistern.MiB });
  using made = new PoolMemoryResource(cuda, options);
  expect(made.reservedBytes).toBe(1 * cistern.MiB);
  using other = new PoolMemoryResource(cuda, { maximumBytes: undefined } as never);
  expect(other.reservedBytes).toBe(0);
});

/** The files of `src/` that run in Node. */
function sources(): string[] {
  const files = readdirSync('src', { recursive: true, encoding: 'utf8' }).map((file) => join('src', file));
  return files.filter((file) => file.endsWith('.ts') && !file.includes('pages'));
}

/** The optional fields of an exported interface, by its name. */
function optionalFields(): ReadonlyMap<string, readonly string[]> {
  const found = new Map<string, readonly string[]>();
  for (const path of sources()) {
    const file = ts.createSourceFile(path, readFileSync(path, 'utf8'), ts.ScriptTarget.Latest, true);
    for (const statement of file.statements) {
      if (!ts.isInterfaceDeclaration(statement)) continue;
      const optional = statement.members.filter((each) => ts.isPropertySignature(each) && each.questionToken !== undefined);
      const names = optional.map((each) => (each as ts.PropertySignature).name).filter(ts.isIdentifier);
      found.set(
        statement.name.text,
        names.map((each) => each.text),
      );
      if (!/\bexport\b/.test(statement.getText().slice(0, 30))) continue;
      for (const each of optional as ts.PropertySignature[]) {
        expect(each.type?.getText(), `${path}: ${statement.name.text}.${each.name.getText()}`).toMatch(/\b(undefined|never|unknown)$/);
      }
    }
  }
  return found;
}

/** They start servers, read whole devices, change settings that other tests rely on, or need their optional field. */
const notCalled = [
  'ConvertLogOptions',
  'ResourceStackOptions',
  'SpillableBufferOptions',
  'SpillableBufferCreateOptions',
  'ServeStatisticsOptions',
  'PublishStatisticsOptions',
  'SoftwareDeviceSettings',
  'CheckOrderOptions',
  'BudgetOptions',
];

test('each optional field of each exported interface can be undefined, as if it were left out', async () => {
  const fields = optionalFields();
  const outcome = async (call: (options: object) => unknown, options: object): Promise<string> => {
    try {
      const result = await call(options);
      (result as Partial<Disposable> | undefined)?.[Symbol.dispose]?.();
      return 'done';
    } catch (error) {
      return String(error);
    }
  };
  for (const [name, call] of takers) {
    const names = fields.get(name) ?? [];
    if (names.length === 0 || notCalled.includes(name) || ['file', 'stream'].some((each) => names.includes(each))) continue;
    const withoutAny = await outcome(call, {});
    const withUndefined = await outcome(call, Object.fromEntries(names.map((each) => [each, undefined])));
    expect(`${name}: ${withUndefined.replaceAll(/\d+/g, '#')}`).toBe(`${name}: ${withoutAny.replaceAll(/\d+/g, '#')}`);
  }
});
