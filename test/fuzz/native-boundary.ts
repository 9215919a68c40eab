/**
 * Fuzzes the addon: the bytes are a sequence of calls with arguments that are mostly right, and
 * sometimes arbitrary. Every call must leave a status and return. None may throw or crash, free
 * memory that is not allocated, hand out memory twice, or keep memory after everything is freed.
 */
import assert from 'node:assert/strict';
import { writeSync } from 'node:fs';
import { inspect } from 'node:util';
import { counters, HandOverContent, mailbox, type NativeBinding, NativeStatus, native } from '../../src/driver/native.js';
import { configureFromEnvironment } from '../../src/driver/software-device.js';
import { ByteReader } from './byte-reader.js';

/** Set if a single input is run again. */
const isTraced = process.env['CISTERN_FUZZ_TRACE'] === '1';

const softwareBackend = 1;
const deviceCount = 2;
const hostKind = 3;
const totalBytes = 16 * 1024 * 1024;
/** The largest block of host memory, and the largest total: the machine must not run out. */
const largestHostBytes = 1024 * 1024;
/** An allocation of this size or more must fail. */
const impossibleBytes = 2 ** 47;
const longestLatencyNanoseconds = 20_000;
const notPermitted = 800;
const longestCallback = 40;
/** An id that no process has: above the largest that Linux gives. */
const noProcess = 2 ** 22 + 1;
/** The size of the allocations that every input begins with. */
const firstBytes = 1000;

interface PlainAllocation {
  readonly bytes: number;
  readonly kind: number;
  readonly device: number;
}
interface PoolAllocation {
  readonly bytes: number;
  readonly pool: number;
}
interface VirtualAllocation {
  readonly bytes: number;
  readonly reservation: number;
}
type HandleKind =
  | 'stream'
  | 'event'
  | 'pool'
  | 'hold'
  | 'reservation'
  | 'tensor'
  | 'share'
  | 'graph'
  | 'exec'
  | 'threadArena'
  | 'admission'
  | 'descriptor';

/** Thrown by callbacks and proxies. */
class ThrownOnPurpose extends Error {}

/** Whether an uncaught error is expected. */
export function isExpected(error: unknown): boolean {
  return error instanceof ThrownOnPurpose;
}

const specialNumbers = [
  ...[0, -0, 1, -1, 2, 3, 0.5, Number.NaN, Infinity, -Infinity, 255, 256, 4095, 4096, 2 ** 20, 2 ** 20 + 1],
  ...[2 ** 31 - 1, 2 ** 31, -(2 ** 31), 2 ** 32, 2 ** 47, 2 ** 53 - 1, 2 ** 53, -(2 ** 53), 2 ** 63, 2 ** 64, 1e300, 5e-324],
];
/** CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */
const releaseThreshold = 4;
const sizes = [0, 1, 8, 255, 256, 257, 4096, 65_536, 1_000_000, 2 * 1024 * 1024, totalBytes, totalBytes + 1];
const injectedStatuses = [1, 2, 3, 201, 400, 600, 700, 719, 800, 999];

/** Calls that may wait for a stream, and would wait forever for a stream that this thread holds. */
const blockingCalls: readonly string[] = [
  ...[
    'synchronizeDevice',
    'synchronizeStream',
    'synchronizeEvent',
    'copyToHostSync',
    'disablePeerAccess',
    'waitForHostFunction',
    'deallocate',
  ],
];

/** Calls whose inputs are written to the mailbox. */
const hotCalls: readonly string[] = [
  ...['queryStream', 'outstandingHostFunctions', 'recordEvent', 'waitEvent', 'queryEvent', 'allocate', 'deallocate'],
  ...[
    'allocateAsync',
    'deallocateAsync',
    'countAllocation',
    'countFree',
    'takeUnpromised',
    'giveUnpromised',
    'isAskedForSuperblocks',
    'allocateThreadSafe',
    'deallocateThreadSafe',
  ],
];

/**
 * The arguments of each call. The position of a call is part of what an input means: add new calls
 * at the end. `releaseAllStalls` ends the process.
 */
const callArguments: {
  readonly [name in Exclude<keyof NativeBinding, 'functionNames' | 'version' | 'releaseAllStalls'>]: (run: Run) => unknown[];
} = {
  initialize: (run) => [run.view(), run.view()],
  openBackend: (run) => [run.reader.byte() % 3],
  cudaUnavailableReason: () => [],
  configureSoftware: (run) => [run.size(), run.reader.byte() % 4],
  canAccessPeer: (run) => [run.device(), run.device()],
  enablePeerAccess: (run) => [run.device(), run.device()],
  disablePeerAccess: (run) => [run.device(), run.device()],
  setLatency: (run) => [run.functionName(), run.reader.short()],
  failCall: (run) => [run.functionName(), run.reader.byte() % 8, run.oneOf(injectedStatuses)],
  driverVersion: () => [],
  statusName: (run) => [run.reader.byte() - 16],
  statusDescription: (run) => [run.reader.byte() - 16],
  threadId: () => [],
  deviceCount: () => [],
  deviceName: (run) => [run.device()],
  deviceUuid: (run) => [run.device()],
  deviceTotalBytes: (run) => [run.device()],
  deviceAttribute: (run) => [run.device(), run.reader.byte()],
  deviceStreamPriorityRange: (run) => [run.device()],
  deviceMemoryInfo: (run) => [run.device()],
  synchronizeDevice: (run) => [run.device()],
  createStream: (run) => [run.device(), run.boolean(), (run.reader.byte() % 8) - 6],
  wrapStream: (run) => [run.device(), run.boolean() ? 1 + (run.reader.byte() % 2) : run.streamAddress()],
  releaseStream: (run) => [run.handle('stream')],
  streamId: (run) => [run.handle('stream')],
  streamAddress: (run) => [run.handle('stream')],
  streamInfo: (run) => [run.handle('stream')],
  synchronizeStream: (run) => [run.handle('stream')],
  queryStream: (run) => [run.handle('stream')],
  streamCompletion: (run) => [run.handle('stream')],
  launchHostFunction: (run) => [run.handle('stream'), run.callback()],
  runHostFunctions: () => [],
  waitForHostFunction: () => [],
  outstandingHostFunctions: () => [],
  holdStream: (run) => [run.handle('stream')],
  releaseHold: (run) => [run.handle('hold')],
  createEvent: (run) => [run.device(), run.boolean()],
  destroyEvent: (run) => [run.handle('event')],
  recordEvent: (run) => [run.handle('event'), run.handle('stream'), run.reader.byte() % 2],
  waitEvent: (run) => [run.handle('stream'), run.handle('event'), run.reader.byte() % 2],
  queryEvent: (run) => [run.handle('event')],
  synchronizeEvent: (run) => [run.handle('event')],
  eventCompletion: (run) => [run.handle('event')],
  elapsedMilliseconds: (run) => [run.handle('event'), run.handle('event')],
  allocate: (run) => {
    const size = run.size();
    const byte = run.reader.byte();
    // Clearing more would take long.
    const threads = size < 2 ** 21 ? (byte >> 2) % 3 : 0;
    return [size, byte % 4, run.device(), 256 << (run.reader.byte() % 6), threads, (byte >> 4) % 2];
  },
  // On no stream: a free then waits for all of them.
  deallocate: (run) => [...run.plainAllocation(), 0],
  allocateAsync: (run) => [run.size(), run.handle('pool'), run.handle('stream')],
  deallocateAsync: (run) => [...run.poolAllocation(), run.handle('stream')],
  createPool: (run) => {
    const node = run.boolean() ? undefined : run.reader.byte() % 3;
    return [run.device(), run.boolean() ? Infinity : run.size(), run.reader.byte() % 5, run.boolean(), Infinity, node];
  },
  destroyPool: (run) => [run.handle('pool')],
  poolAllocations: (run) => [run.handle('pool')],
  trimPool: (run) => [run.handle('pool'), run.size()],
  poolAttribute: (run) => [run.handle('pool'), 1 + (run.reader.byte() % 8)],
  setPoolAttribute: (run) => [run.handle('pool'), 1 + (run.reader.byte() % 8), run.boolean() ? run.reader.byte() % 2 : run.size()],
  copy: (run) => [run.address(), run.address(), run.size(), run.handle('stream')],
  copyFromHost: (run) => [run.address(), run.view(), run.size(), run.handle('stream')],
  copyToHostSync: (run) => [run.view(), run.address(), run.size(), run.handle('stream')],
  copyToHost: (run) => [run.address(), run.size(), run.handle('stream')],
  set: (run) => [run.address(), run.reader.byte(), run.boolean() ? 1 : 4, run.size(), run.handle('stream')],
  advise: (run) => [run.address(), run.size(), run.reader.byte() % 8, 1 + (run.reader.byte() % 2), run.device()],
  prefetch: (run) => [run.address(), run.size(), 1 + (run.reader.byte() % 2), run.device(), run.handle('stream')],
  rangeAttribute: (run) => [run.address(), run.size(), run.reader.byte() % 6],
  pointerInfo: (run) => [run.address()],
  beginOrderCheck: () => [new Float64Array(2)],
  endOrderCheck: () => [],
  takeOrderReports: (run) => [new Float64Array(run.reader.byte())],
  touch: (run) => [run.address(), run.size(), run.handle('stream'), run.boolean()],
  declareAllocation: (run) => [run.address(), run.size(), run.handle('stream')],
  declareFree: (run) => [run.address(), run.size(), run.handle('stream')],
  watch: (run) => [run.anything()],
  unwatch: (run) => [run.reader.byte() % 4],
  collectedSlots: (run) => [new Int32Array(run.reader.byte() % 8)],
  liveStreams: () => [],
  failCallAfter: (run) => [run.functionName(), run.functionName(), run.reader.byte() % 8, run.oneOf(injectedStatuses)],
  reserveAddresses: (run) => [run.device(), run.size()],
  freeAddresses: (run) => [run.handle('reservation')],
  allocateVirtual: (run) => [run.handle('reservation'), run.size()],
  deallocateVirtual: (run) => [...run.virtualAllocation(), 0],
  managedActivity: (run) => [run.reader.byte() - 2],
  resetManagedActivity: () => [],
  residentBytes: (run) => [run.address(), run.size(), run.reader.byte() - 2],
  accessFromHost: (run) => [run.address(), run.size(), run.boolean()],
  beginManagedMoves: () => [new Int32Array(1)],
  takeManagedMoves: (run) => [new Float64Array(run.reader.byte())],
  endManagedMoves: () => [],
  viewFromHost: (run) => [run.address(), run.size()],
  endView: () => [new ArrayBuffer(8)],
  openPool: (run) => [run.device(), run.poolAddress(), run.oneOf([true, false])],
  makePoolCurrent: (run) => [run.handle('pool')],
  poolAddress: (run) => [run.handle('pool')],
  onReturned: (run) => [run.callback()],
  handOver: (run) => [run.address(), run.size(), run.size(), 256, run.reader.byte() % 5, run.device(), run.handle('stream'), run.boolean()],
  handOverInfo: (run) => run.message().slice(0, 2),
  attachHandOver: (run) => [...run.message().slice(0, 2), run.handle('stream')],
  handOn: (run) => [...run.attachment(), run.size(), run.handle('stream'), run.boolean()],
  giveBack: (run) => [...run.attachment(), run.handle('stream')],
  discardMessage: (run) => [...run.message()],
  recallHandOver: (run) => [run.attachment()[0]],
  takeReturned: () => [],
  onCollectionRequest: (run) => [run.callback()],
  answerCollectionRequest: () => [],
  askToCollect: () => [],
  awaitCollections: (run) => [run.reader.byte() % 3],
  followReturned: (run) => [run.attachment()[0], run.handle('stream')],
  exportTensor: (run) => [
    ...[run.address(), 1 + (run.reader.byte() % 14), run.device(), run.reader.byte(), run.reader.byte(), run.reader.short()],
    ...[run.size(), run.reader.byte(), run.boolean(), ...run.shapeAndStrides(), countReleasedTensor],
  ],
  inspectTensor: (run) => [run.capsule(), new Float64Array(128)],
  takeTensor: (run) => [run.capsule()],
  releaseTensor: (run) => [run.handle('tensor')],
  openShare: (run) => [run.boolean(), run.boolean() ? 'a' : 'b', run.size()],
  closeShare: (run) => [run.handle('share')],
  countAllocation: (run) => [run.handle('share'), run.size()],
  countFree: (run) => [run.handle('share'), run.size()],
  countFailure: (run) => [run.handle('share')],
  readShare: (run) => [run.handle('share')],
  settleShare: (run) => [run.handle('share')],
  exportMemory: (run) => {
    const [address, bytes] = run.plainAllocation();
    return [address, bytes, bytes, 256, run.handle('stream'), new Uint8Array(56)];
  },
  refreshExport: (run) => [run.reader.byte(), run.size(), run.handle('stream')],
  noticeEndedImporters: () => [],
  exportIsUsed: (run) => [run.reader.byte()],
  closeExport: (run) => [run.reader.byte(), run.boolean()],
  openImport: (run) => [run.view(), run.handle('stream')],
  closeImport: (run) => [run.reader.byte()],
  onArenaRequest: (run) => [run.callback()],
  openArena: (run) => [run.boolean() ? 'a' : 'b', run.device(), run.reader.byte() % 4, 256 << (run.reader.byte() % 12), 256, 0],
  closeArena: (run) => [run.arena()],
  allocateSuperblocks: (run) => [run.arena(), run.size(), run.handle('stream')],
  freeSuperblocks: (run) => [...run.superblocks(), run.handle('stream')],
  arenaInfo: (run) => [run.arena()],
  askForSuperblocks: (run) => [run.arena(), run.size(), run.reader.byte() % 3, run.reader.byte() % 3, run.reader.byte() % 4],
  isAskedForSuperblocks: () => [],
  takeArenaRequest: () => [],
  answerArenaRequest: (run) => [run.arena(), run.reader.byte() % 4],
  handOverStream: (run) => [run.handle('stream'), run.reader.byte(), run.boolean()],
  handOverEvent: (run) => [run.handle('event'), run.boolean()],
  attachStream: (run) => run.message().slice(0, 2),
  attachEvent: (run) => run.message().slice(0, 2),
  reopenExport: (run) => [run.reader.byte()],
  endExport: (run) => [run.reader.byte()],
  onKeptOrphans: (run) => [run.callback()],
  readKeptOrphans: () => [],
  driverTable: () => [],
  missingDriverFunctions: () => [],
  beginCapture: (run) => [run.handle('stream'), run.reader.byte() % 4],
  endCapture: (run) => [run.handle('stream')],
  abandonCapture: (run) => [run.handle('stream')],
  captureStatus: (run) => [run.handle('stream')],
  destroyGraph: (run) => [run.handle('graph')],
  instantiateGraph: (run) => [run.handle('graph'), run.boolean()],
  destroyGraphExec: (run) => [run.handle('exec')],
  updateGraphExec: (run) => [run.handle('exec'), run.handle('graph')],
  launchGraph: (run) => [run.handle('exec'), run.handle('stream'), run.callback()],
  uploadGraph: (run) => [run.handle('exec'), run.handle('stream')],
  addChildGraph: (run) => [run.handle('stream'), run.handle('graph')],
  countGraphNodes: (run) => [run.handle('graph'), new Float64Array(run.boolean() ? 14 : 3)],
  writeGraph: (run) => [run.handle('graph'), run.boolean() ? '/dev/null' : '/nowhere/at/all'],
  retainInGraph: (run) => [run.handle('graph'), run.reader.byte()],
  onEndedParts: (run) => [run.callback()],
  takeEndedPart: () => [],
  liveExtents: (run) => [run.handle('reservation')],
  absentBytes: (run) => [run.handle('reservation')],
  awaitBeforeSleep: (run) => [run.handle('reservation')],
  unmapVirtual: (run) => [run.handle('reservation')],
  mapVirtual: (run) => [run.handle('reservation')],
  openThreadSafeArena: (run) => [run.arena(), run.device(), run.reader.byte() % 4],
  // No live one: it is closed at the end.
  closeThreadSafeArena: (run) => [run.reader.byte()],
  allocateThreadSafe: (run) => [run.size(), 1 << (run.reader.byte() % 12), run.handle('threadArena'), run.handle('stream')],
  deallocateThreadSafe: (run) => [...run.threadAllocation(), run.handle('stream')],
  claimThreadSafe: (run) => {
    const [address, bytes, handle] = run.threadAllocation();
    return [handle, address, bytes];
  },
  threadSafeStatistics: (run) => [run.handle('threadArena')],
  resetThreadSafePeak: (run) => [run.handle('threadArena')],
  // Nobody would release it.
  threadSafeTable: (run) => [run.reader.byte(), run.reader.byte() % 4],
  onAdmissions: (run) => [run.callback()],
  openAdmission: (run) => [run.boolean() ? '' : 'a', run.size(), run.reader.byte() % 4],
  closeAdmission: (run) => [run.handle('admission')],
  takeUnpromised: (run) => [run.handle('admission'), run.size()],
  giveUnpromised: (run) => [run.handle('admission'), run.size(), run.reader.byte() % 2],
  askForAdmission: (run) => {
    const request = [run.handle('admission'), run.size(), run.reader.byte() % 3, run.reader.byte() % 4, run.boolean()];
    const [other, holder] = [run.handle('admission') as number, run.reader.byte() % 5];
    return [...request, holder === 4 ? undefined : Float64Array.of(other, holder)];
  },
  withdrawAdmission: (run) => [run.handle('admission'), run.reader.byte() % 8],
  shrinkAdmission: (run) => [run.handle('admission'), run.reader.byte() % 4, run.size()],
  endAdmission: (run) => [run.handle('admission'), run.reader.byte() % 4, run.size()],
  stopAdmission: (run) => [run.handle('admission')],
  takeAdmission: (run) => [run.handle('admission')],
  readAdmission: (run) => [run.handle('admission')],
  validateAdmission: (run) => [run.handle('admission')],
  settleAdmission: (run) => [run.handle('admission')],
  allocateManyThreadSafe: (run) => {
    const sizes = Float64Array.from({ length: run.reader.byte() % 5 }, () => run.size());
    return [run.handle('threadArena'), run.handle('stream'), sizes, new Float64Array(sizes.length)];
  },
  deallocateManyThreadSafe: (run) => {
    const { arena, pointers, sizes } = run.threadAllocations();
    return [arena, run.handle('stream'), pointers, sizes];
  },
  checkManyThreadSafe: (run) => {
    const { arena, pointers, sizes } = run.threadAllocations();
    return [arena, pointers, sizes];
  },
  holdAdmission: (run) => [run.handle('admission'), Float64Array.of(run.handle('admission') as number, run.reader.byte() % 4)],
  endAdmissionHold: (run) => [run.handle('admission'), run.reader.byte() % 4],
  retainInCapture: (run) => [run.handle('stream'), run.reader.byte()],
  deviceIsInUse: (run) => [run.device()],
  openNvml: () => ['/no/such/library'],
  nvmlDevice: (run) => [run.functionName()],
  openToolMemory: () => ['/no/such/library'],
  tellToolMemory: (run) => [run.reader.byte() % 5, run.address(), run.size()],
  enterAccountOutside: (run) => [run.functionName()],
  leaveAccountOutside: (run) => [run.reader.byte()],
  stepProcess: (run) => [run.reader.byte() % 6, noProcess, run.reader.byte()],
  beginProcessSleep: () => [],
  noteProcessAsleep: () => [],
  endProcessSleep: () => [],
  mapLasting: (run) => [run.device(), run.size(), run.address(), run.boolean(), run.handle('descriptor')],
  protectLasting: (run) => [run.handle('reservation')],
  // Nobody listens, and nobody connects: a call would wait.
  listenLocal: () => ['/no/such/folder/socket'],
  connectLocal: (run) => ['/no/such/folder/socket', run.reader.byte()],
  acceptLocal: (run) => [run.handle('descriptor')],
  sendLocal: (run) => [run.handle('descriptor'), run.functionName(), run.handle('descriptor')],
  receiveLocal: (run) => [run.handle('descriptor')],
  pollLocal: (run) => [Float64Array.of(run.handle('descriptor')), run.reader.byte() % 3],
  closeDescriptor: (run) => [run.handle('descriptor')],
  onKeptRequest: (run) => [run.reader.byte(), run.callback()],
  noteKept: (run) => [run.reader.byte() % 5, run.reader.byte() % 5, run.reader.byte() % 3, 'pool', run.size()],
  askForKept: (run) => [run.reader.byte() % 5, run.reader.byte() % 3, run.size(), run.reader.byte() % 3],
  keptElsewhere: (run) => [run.reader.byte() % 5, run.reader.byte() % 3],
  copyTogether: (run) => {
    const copies = Array.from({ length: run.reader.byte() % 5 }, () => [run.address(), run.address(), run.size()]);
    return [Float64Array.from([...copies.flat(), ...(run.reader.byte() === 0 ? [0] : [])].map(Number)), run.handle('stream')];
  },
};
const callNames = Object.keys(callArguments) as (keyof typeof callArguments)[];

/** One input. */
class Run {
  /** The source of values: the input, or the part of it that a callback received. */
  reader: ByteReader;
  readonly #binding = native();
  readonly #live: Record<HandleKind, number[]> = {
    ...{ stream: [], event: [], pool: [], hold: [], reservation: [], tensor: [], share: [] },
    ...{ graph: [], exec: [], threadArena: [], admission: [], descriptor: [] },
  };
  readonly #handles: number[] = [1];
  readonly #plain = new Map<number, PlainAllocation>();
  readonly #pooled = new Map<number, PoolAllocation>();
  readonly #virtual = new Map<number, VirtualAllocation>();
  readonly #threads = new Map<number, { readonly bytes: number; readonly arena: number }>();
  /** An arena for each time that it was opened. Memory of arena n is in `#virtual`, with reservation -n. */
  readonly #arenas: number[] = [];
  readonly #streamAddresses: number[] = [3];
  readonly #poolAddresses: number[] = [0, 3];
  readonly #capsules: object[] = [];
  readonly #promises: Promise<unknown>[] = [];
  readonly #watched: number[] = [];
  readonly #exports: number[] = [];
  /** The number, the nonce and the content of every message. */
  readonly #messages: (readonly [number, number, number])[] = [];
  /** The hand-over and the number of every attachment of memory. */
  readonly #attachments: (readonly [number, number])[] = [];
  readonly #latencies = new Set<string>();
  readonly #failures = new Set<string>();
  /** Counted as calls, as all allocations are. */
  #failedHostAllocations = 0;
  /** For error reports. */
  readonly calls: { readonly name: string; readonly args: readonly unknown[]; status?: number }[] = [];

  constructor(bytes: Uint8Array) {
    this.reader = new ByteReader(bytes);
  }

  async all(): Promise<void> {
    const before = this.#memory();
    // One of each kind, so that no call has to create its own.
    for (let device = 0; device < deviceCount; device++) this.#succeed('createStream', device, true, 0);
    this.#succeed('createEvent', 0, true);
    this.#succeed('createPool', 0, 0, 0, false, Infinity, undefined);
    this.#succeed('allocateAsync', firstBytes, this.#live.pool[0], this.#live.stream[0]);
    for (let kind = 0; kind <= hostKind; kind++) this.#succeed('allocate', firstBytes, kind, 0, 256, 0, 0);
    while (!this.reader.isAtEnd) this.#callOne();
    await this.#giveEverythingBack();
    assert.deepEqual(this.#memory(), before, 'memory is not conserved');
  }

  #callOne(): void {
    const name = this.oneOf(callNames);
    let args = callArguments[name](this);
    const fault = this.reader.byte();
    if (fault >= 245) args = args.map(() => this.anything());
    else if (fault >= 200 && args.length > 0) args[fault % args.length] = this.anything();
    else if (fault >= 195) args = args.slice(0, fault % 3);
    else if (fault >= 190) args.push(this.anything(), this.anything());
    this.#call(name, bounded(name, args));
  }

  /** Calls the addon, checks the result against the model, and updates the model. */
  #call(name: keyof typeof callArguments, args: readonly unknown[]): number {
    if (blockingCalls.includes(name)) while (this.#live.hold.length > 0) this.#call('releaseHold', [this.#live.hold[0]]);
    // The caller that frees host memory must first wait for the streams that may still use it.
    if (name === 'deallocate' && args[2] === hostKind && !this.#isIdle()) return notPermitted;
    const call: (typeof this.calls)[number] = { name, args };
    this.calls.push(call);
    // Written before the call, which may be the last.
    if (isTraced) writeSync(2, `${name}(${formatArguments(args)})\n`);
    const isHot = hotCalls.includes(name);
    mailbox.fill(Number.NaN);
    // A non-number would be converted here, not by the addon.
    if (isHot) for (const [i, value] of args.slice(0, 16).entries()) mailbox[i] = typeof value === 'number' ? value : Number.NaN;
    const inputs = isHot ? Array.from(mailbox) : args;

    const binding = this.#binding as unknown as Record<string, (...args: unknown[]) => unknown>;
    const result = binding[name]?.(...(isHot ? [] : args));
    if (name === 'initialize') {
      this.#binding.initialize(mailbox, counters());
      assert.equal(mailbox[0], 0);
      return 0;
    }
    const status = mailbox[0] as number;
    call.status = status;
    // Otherwise nothing that follows would reach the device.
    if (name === 'beginProcessSleep') this.#binding.endProcessSleep();
    assert.ok(Number.isInteger(status) && status >= NativeStatus.asleep && status <= 999, `${name} left the status ${status}`);
    if (result instanceof Promise) this.#promises.push(result);
    else if (name === 'poolAllocations' || name === 'liveExtents' || name === 'askForSuperblocks')
      assert.ok(result === undefined || result instanceof Float64Array, `${name} returned ${inspect(result)}`);
    else if (name === 'exportTensor') {
      assert.ok(result === undefined || typeof result === 'object', `${name} returned ${inspect(result)}`);
      if (typeof result === 'object' && result !== null) this.#capsules.push(result);
    } else if (name === 'viewFromHost')
      assert.ok(result === undefined || result instanceof ArrayBuffer, `${name} returned ${inspect(result)}`);
    else assert.ok(result === undefined || typeof result === 'string', `${name} returned ${inspect(result)}`);
    if (status === 0) this.#note(name, inputs, mailbox[1] as number);
    else if (name === 'deallocate') this.#checkRefusal(inputs as number[], status);
    else if (name === 'allocate' && inputs[1] === hostKind && status === NativeStatus.hostOutOfMemory) this.#failedHostAllocations++;
    return status;
  }

  #isIdle(): boolean {
    return Array.from({ length: deviceCount }, (_, device) => this.#call('synchronizeDevice', [device])).every((status) => status === 0);
  }

  /** Updates the model after a successful call. */
  #note(name: string, inputs: readonly unknown[], output: number): void {
    const number = inputs[0] as number;
    switch (name) {
      case 'createStream':
      case 'wrapStream':
        this.#add('stream', output);
        return;
      case 'createEvent':
        this.#add('event', output);
        return;
      case 'createPool':
      case 'openPool':
        this.#add('pool', output);
        return;
      case 'takeTensor':
        this.#add('tensor', output);
        return;
      case 'releaseTensor':
        this.#remove('tensor', number);
        return;
      case 'openShare':
        // A second open of a share has the same handle.
        if (!this.#live.share.includes(output)) this.#add('share', output);
        return;
      case 'openAdmission':
        this.#add('admission', output);
        return;
      case 'closeAdmission':
        this.#remove('admission', number);
        return;
      case 'validateAdmission':
        assert.equal(output, 0, 'an invariant of a queue for memory');
        return;
      case 'holdStream':
        this.#add('hold', output);
        return;
      case 'releaseStream':
        this.#remove('stream', number);
        return;
      case 'endCapture':
        this.#add('graph', output);
        return;
      case 'instantiateGraph':
        this.#add('exec', output);
        return;
      case 'destroyGraph':
        this.#remove('graph', number);
        return;
      case 'destroyGraphExec':
        this.#remove('exec', number);
        return;
      case 'destroyEvent':
        this.#remove('event', number);
        return;
      case 'releaseHold':
        this.#remove('hold', number);
        return;
      case 'destroyPool':
        for (const [address, { pool }] of this.#pooled) if (pool === number) this.#pooled.delete(address);
        this.#remove('pool', number);
        return;
      case 'exportMemory':
        this.#exports.push(output);
        return;
      case 'handOver':
        this.#messages.push([mailbox[2] as number, mailbox[3] as number, HandOverContent.buffer]);
        this.#attachments.push([output, mailbox[4] as number]);
        return;
      case 'attachHandOver':
        this.#attachments.push([output, mailbox[2] as number]);
        return;
      case 'handOn':
        this.#messages.push([output, mailbox[2] as number, HandOverContent.buffer]);
        return;
      case 'handOverStream':
        this.#messages.push([output, mailbox[2] as number, HandOverContent.stream]);
        if (inputs[2] === false) this.#remove('stream', number);
        return;
      case 'handOverEvent':
        this.#messages.push([output, mailbox[2] as number, HandOverContent.event]);
        if (inputs[1] === false) this.#remove('event', number);
        return;
      case 'attachStream':
        this.#add('stream', output);
        return;
      case 'attachEvent':
        this.#add('event', output);
        return;
      case 'reserveAddresses':
        this.#add('reservation', output);
        return;
      case 'mapLasting': {
        const [, , address, bytes, descriptor] = mailbox as unknown as [number, number, number, number, number];
        this.#checkFresh(address, bytes);
        this.#virtual.set(address, { bytes, reservation: output });
        this.#add('reservation', output);
        if (descriptor !== 0) this.#add('descriptor', descriptor);
        return;
      }
      case 'closeDescriptor':
        this.#remove('descriptor', number);
        return;
      case 'freeAddresses':
        for (const [address, { reservation }] of this.#virtual) if (reservation === number) this.#virtual.delete(address);
        this.#remove('reservation', number);
        return;
      case 'openArena':
        this.#arenas.push(output);
        return;
      case 'closeArena':
        this.#arenas.splice(this.#arenas.indexOf(number), 1);
        return;
      case 'openThreadSafeArena':
        this.#add('threadArena', output);
        return;
      case 'allocateThreadSafe':
        this.#checkFresh(output, number);
        this.#threads.set(output, { bytes: number, arena: inputs[2] as number });
        return;
      case 'deallocateThreadSafe': {
        const { bytes, arena } = this.#threads.get(number) ?? {};
        assert.deepEqual([bytes, arena], inputs.slice(1, 3), `freed ${number}, which is not allocated like that`);
        this.#threads.delete(number);
        return;
      }
      case 'allocateManyThreadSafe':
        (inputs[2] as Float64Array).forEach((bytes, i) => {
          const pointer = (inputs[3] as Float64Array)[i] as number;
          if (bytes > 0) this.#note('allocateThreadSafe', [bytes, 256, number], pointer);
          else assert.equal(pointer, 0);
        });
        return;
      case 'deallocateManyThreadSafe':
        (inputs[2] as Float64Array).forEach((pointer, i) => {
          if (pointer !== 0) this.#note('deallocateThreadSafe', [pointer, (inputs[3] as Float64Array)[i], number], 0);
        });
        return;
      case 'allocateSuperblocks':
        this.#checkFresh(output, inputs[1] as number);
        this.#virtual.set(output, { bytes: inputs[1] as number, reservation: -number });
        return;
      case 'freeSuperblocks':
        this.#freeVirtual(-number, inputs[1] as number, inputs[2] as number);
        return;
      case 'allocateVirtual':
        this.#checkFresh(output, inputs[1] as number);
        this.#virtual.set(output, { bytes: inputs[1] as number, reservation: number });
        return;
      case 'deallocateVirtual':
        this.#freeVirtual(number, inputs[1] as number, inputs[2] as number);
        return;
      case 'streamAddress':
        this.#streamAddresses.push(output);
        return;
      case 'poolAddress':
        this.#poolAddresses.push(output);
        return;
      case 'allocate':
        this.#checkFresh(output, number);
        this.#plain.set(output, { bytes: number, kind: inputs[1] as number, device: inputs[2] as number });
        return;
      case 'allocateAsync':
        this.#checkFresh(output, number);
        this.#pooled.set(output, { bytes: number, pool: inputs[1] as number });
        return;
      case 'deallocate':
        assert.ok(this.#isPlain(inputs as number[]), `freed ${number}, which is not allocated like that`);
        this.#plain.delete(number);
        return;
      case 'deallocateAsync': {
        const { bytes, pool } = this.#pooled.get(number) ?? {};
        assert.deepEqual([bytes, pool], inputs.slice(1, 3), `freed ${number}, which is not allocated like that`);
        this.#pooled.delete(number);
        return;
      }
      case 'setLatency':
        this.#latencies.add(inputs[0] as string);
        return;
      case 'failCall':
        this.#failures.add(inputs[0] as string);
        return;
      case 'failCallAfter':
        this.#failures.add(inputs[0] as string).add(inputs[1] as string);
        return;
      case 'watch':
        this.#watched.push(output);
        return;
      case 'unwatch':
        assert.ok(this.#watched.includes(number), `nothing was watched as ${number}`);
        this.#watched.splice(this.#watched.indexOf(number), 1);
        return;
    }
  }

  #checkRefusal(inputs: readonly number[], status: number): void {
    const isOwnStatus = [NativeStatus.hostFunctionReady, NativeStatus.capturing, notPermitted].includes(status);
    if (isOwnStatus || this.#failures.size > 0) return;
    assert.ok(!this.#isPlain(inputs), `the status ${status} for memory that is allocated`);
  }

  #isPlain([address = 0, bytes, kind, device]: readonly number[]): boolean {
    const allocation = this.#plain.get(address);
    return allocation !== undefined && allocation.bytes === bytes && allocation.kind === kind && allocation.device === device;
  }

  /** Cuts what was freed out of the allocations, which must have covered it. */
  #freeVirtual(reservation: number, begin: number, bytes: number): void {
    const end = begin + bytes;
    let freed = 0;
    for (const [address, allocation] of [...this.#virtual]) {
      const from = Math.max(address, begin);
      const to = Math.min(address + allocation.bytes, end);
      if (from >= to) continue;
      assert.equal(allocation.reservation, reservation, `freed ${begin} in another reservation`);
      freed += to - from;
      this.#virtual.delete(address);
      if (address < from) this.#virtual.set(address, { bytes: from - address, reservation });
      if (to < address + allocation.bytes) this.#virtual.set(to, { bytes: address + allocation.bytes - to, reservation });
    }
    assert.equal(freed, bytes, `freed ${bytes} bytes at ${begin}, which are not allocated`);
  }

  #checkFresh(address: number, bytes: number): void {
    assert.ok(Number.isSafeInteger(address) && address > 0 && address % 256 === 0, `the address ${address}`);
    for (const [other, { bytes: otherBytes }] of [...this.#plain, ...this.#pooled, ...this.#virtual, ...this.#threads]) {
      assert.ok(address + bytes <= other || other + otherBytes <= address, `${address} is handed out while ${other} is live`);
    }
  }

  #add(kind: HandleKind, handle: number): void {
    assert.ok(Number.isSafeInteger(handle) && handle > 0 && !this.#live[kind].includes(handle), `the handle ${handle}`);
    this.#live[kind].push(handle);
    this.#handles.push(handle);
  }

  #remove(kind: HandleKind, handle: number): void {
    const at = this.#live[kind].indexOf(handle);
    assert.ok(at >= 0, `${handle} was no live ${kind}`);
    this.#live[kind].splice(at, 1);
  }

  #succeed(name: keyof typeof callArguments, ...args: readonly unknown[]): void {
    assert.equal(this.#call(name, args), 0, `${name} fails`);
  }

  #endInjection(): void {
    for (const name of this.#latencies) this.#succeed('setLatency', name, 0);
    for (const name of this.#failures) this.#succeed('failCall', name, 0, 1);
  }

  /** A stream that joined a capture leaves it when the capture ends on its first stream. */
  #endCaptures(): void {
    for (const stream of this.#live.stream) this.#call('abandonCapture', [stream]);
  }

  async #giveEverythingBack(): Promise<void> {
    this.#endInjection();
    this.#endCaptures();
    while (this.#live.hold.length > 0) this.#succeed('releaseHold', this.#live.hold[0]);
    for (;;) {
      this.#succeed('outstandingHostFunctions');
      if (mailbox[1] === 0) break;
      this.#succeed('runHostFunctions');
      await new Promise(setImmediate);
      // A callback may have created what callbacks can create.
      while (this.#live.hold.length > 0) this.#succeed('releaseHold', this.#live.hold[0]);
      this.#endInjection();
      this.#endCaptures();
    }
    await Promise.all(this.#promises);
    while (this.#live.exec.length > 0) this.#succeed('destroyGraphExec', this.#live.exec[0]);
    while (this.#live.graph.length > 0) this.#succeed('destroyGraph', this.#live.graph[0]);
    this.#endHandOvers();
    // Memory that others may use is not freed with its pool or arena.
    for (const each of this.#exports) {
      this.#call('closeExport', [each, false]);
      this.#call('endExport', [each]);
    }
    for (const capsule of this.#capsules) this.#call('takeTensor', [capsule]);
    while (this.#live.tensor.length > 0) this.#succeed('releaseTensor', this.#live.tensor[0]);
    for (let turn = 0; turn < 100 && releasedTensors < this.#capsules.length; turn++) await new Promise(setImmediate);
    for (const [address, { bytes, kind, device }] of [...this.#plain]) this.#succeed('deallocate', address, bytes, kind, device);
    // The default pools outlive the run, and must not keep memory.
    for (let device = 0; device < deviceCount; device++) {
      this.#succeed('openPool', device, 0, false);
      this.#succeed('setPoolAttribute', this.#live.pool.at(-1), releaseThreshold, 0);
    }
    for (const [address, { bytes, reservation }] of [...this.#virtual]) {
      if (reservation < 0) this.#succeed('freeSuperblocks', -reservation, address, bytes, this.#live.stream[0] ?? 0);
    }
    for (const [address, { bytes, arena }] of [...this.#threads]) {
      this.#succeed('deallocateThreadSafe', address, bytes, arena, this.#live.stream[0] ?? 0);
    }
    for (const arena of this.#live.threadArena.splice(0)) this.#succeed('closeThreadSafeArena', arena);
    while (this.#live.admission.length > 0) this.#succeed('closeAdmission', this.#live.admission[0]);
    while (this.#arenas.length > 0) this.#succeed('closeArena', this.#arenas[0]);
    while (this.#live.pool.length > 0) this.#succeed('destroyPool', this.#live.pool[0]);
    while (this.#live.reservation.length > 0) this.#succeed('freeAddresses', this.#live.reservation[0]);
    while (this.#live.descriptor.length > 0) this.#succeed('closeDescriptor', this.#live.descriptor[0]);
    while (this.#live.event.length > 0) this.#succeed('destroyEvent', this.#live.event[0]);
    while (this.#live.stream.length > 0) this.#succeed('releaseStream', this.#live.stream[0]);
    while (this.#watched.length > 0) this.#succeed('unwatch', this.#watched[0]);
    this.#succeed('endOrderCheck');
    this.#succeed('endManagedMoves');
    this.#succeed('configureSoftware', totalBytes, 0);
    // Twice, because a pool of one device may have been freed in the order of another device's
    // stream.
    for (let device = 0; device < 2 * deviceCount; device++) this.#succeed('synchronizeDevice', device % deviceCount);
  }

  /** Until then, memory that others may use stays. */
  #endHandOvers(): void {
    this.#succeed('createStream', 0, true, 0);
    const stream = this.#live.stream.at(-1);
    for (const message of this.#messages) this.#succeed('discardMessage', ...message);
    for (const attachment of this.#attachments) this.#call('giveBack', [...attachment, stream]);
    for (;;) {
      this.#succeed('takeReturned');
      const [, handOver, isComplete] = mailbox;
      if (handOver === 0) break;
      if (isComplete === 0) this.#succeed('followReturned', handOver, stream);
    }
    for (const [handOver] of this.#attachments) this.#call('followReturned', [handOver, stream]);
  }

  /** The free bytes on each device, and the number of live blocks of host memory. */
  #memory(): readonly number[] {
    const free = Array.from({ length: deviceCount }, (_, device) => {
      this.#succeed('deviceMemoryInfo', device);
      return mailbox[1] as number;
    });
    const [hostAllocations = 0, hostFrees = 0] = counters().slice(-2);
    return [...free, hostAllocations - hostFrees - this.#failedHostAllocations];
  }

  oneOf<T>(values: readonly T[]): T {
    return values[this.reader.byte() % values.length] as T;
  }

  boolean(): boolean {
    return this.reader.byte() % 2 === 1;
  }

  device(): number {
    return this.reader.byte() % deviceCount;
  }

  size(): number {
    switch (this.reader.byte() % 4) {
      case 0:
        return this.oneOf(sizes);
      case 1:
        return this.reader.short();
      default:
        return Math.max(0, this.#allocation()[1].bytes + (this.reader.byte() % 3) - 1);
    }
  }

  functionName(): string {
    return this.oneOf(this.#binding.functionNames);
  }

  /** A live handle, and occasionally any handle that ever existed. */
  handle(kind: HandleKind): number {
    const handles = this.reader.byte() % 8 === 0 ? this.#handles : this.#live[kind];
    return handles.length > 0 ? this.oneOf(handles) : 0;
  }

  streamAddress(): number {
    return this.oneOf(this.#streamAddresses);
  }

  capsule(): unknown {
    return this.#capsules.length > 0 ? this.oneOf(this.#capsules) : undefined;
  }

  shapeAndStrides(): [Float64Array, Float64Array] {
    const numbers = () => Float64Array.from({ length: dimensions }, () => (this.boolean() ? this.oneOf(specialNumbers) : this.size()));
    const dimensions = this.reader.byte() % 4;
    return [numbers(), numbers()];
  }

  poolAddress(): number {
    return this.oneOf(this.#poolAddresses);
  }

  /** An address in live memory. */
  address(): number {
    const [address, { bytes }] = this.#allocation();
    return address + (this.boolean() ? this.reader.short() % bytes : 0);
  }

  #allocation(): readonly [address: number, { readonly bytes: number }] {
    const allocations = [...this.#plain, ...this.#pooled, ...this.#virtual];
    return allocations.length === 0 ? [0, { bytes: 1 }] : this.oneOf(allocations);
  }

  plainAllocation(): number[] {
    const allocations = [...this.#plain];
    if (allocations.length === 0) return [0, 0, 0, 0];
    const [address, { bytes, kind, device }] = this.oneOf(allocations);
    return [address, bytes, kind, device];
  }

  poolAllocation(): number[] {
    const allocations = [...this.#pooled];
    if (allocations.length === 0) return [0, 0, 0];
    const [address, { bytes, pool }] = this.oneOf(allocations);
    return [address, bytes, pool];
  }

  threadAllocation(): number[] {
    const allocations = [...this.#threads];
    if (allocations.length === 0) return [0, 0, this.handle('threadArena')];
    const [address, { bytes, arena }] = this.oneOf(allocations);
    return [address, this.reader.byte() % 8 === 0 ? this.size() : bytes, arena];
  }

  threadAllocations(): { readonly arena: number; readonly pointers: Float64Array; readonly sizes: Float64Array } {
    const blocks = Array.from({ length: 1 + (this.reader.byte() % 4) }, () => this.threadAllocation());
    return {
      arena: blocks[0]?.[2] as number,
      pointers: Float64Array.from(blocks, ([pointer = 0]) => pointer),
      sizes: Float64Array.from(blocks, ([, bytes = 0]) => bytes),
    };
  }

  message(): readonly [number, number, number] {
    return this.oneOf([...this.#messages, [1, this.size(), this.reader.byte() % 4]]);
  }

  attachment(): readonly [number, number] {
    return this.oneOf([...this.#attachments, [1, 1]]);
  }

  /** An allocation, or a part of it that may not begin or end where it can be cut. */
  virtualAllocation(): number[] {
    const allocations = [...this.#virtual].filter(([, { reservation }]) => reservation > 0);
    if (allocations.length === 0) return [this.handle('reservation'), 0, 0];
    const [address, { bytes, reservation }] = this.oneOf(allocations);
    const offset = this.boolean() ? 0 : this.oneOf(sizes);
    return [reservation, address + offset, this.boolean() ? bytes : this.oneOf(sizes)];
  }

  arena(): number {
    return this.#arenas.length === 0 ? this.reader.byte() % 4 : this.oneOf(this.#arenas);
  }

  superblocks(): number[] {
    const allocations = [...this.#virtual].filter(([, { reservation }]) => reservation < 0);
    if (allocations.length === 0) return [this.arena(), 0, 0];
    const [address, { bytes, reservation }] = this.oneOf(allocations);
    const offset = this.boolean() ? 0 : this.oneOf(sizes);
    return [-reservation, address + offset, this.boolean() ? bytes : this.oneOf(sizes)];
  }

  /** A function that also makes calls, and may throw. */
  callback(): () => void {
    const reader = new ByteReader(this.reader.take(this.reader.byte() % longestCallback));
    return () => {
      const outer = this.reader;
      this.reader = reader;
      const mustThrow = this.reader.byte() % 4 === 0;
      while (!this.reader.isAtEnd) this.#callOne();
      this.reader = outer;
      if (mustThrow) throw new ThrownOnPurpose();
    };
  }

  view(): ArrayBufferView {
    const length = this.reader.byte();
    switch (this.reader.byte() % 10) {
      case 0:
        return new Float64Array(length);
      case 1:
        return new DataView(new ArrayBuffer(length), length >> 1);
      case 2:
        return new Float64Array(new SharedArrayBuffer(8 * length));
      case 3:
        return detached(new Float64Array(length));
      case 4:
        return shrunk(8 * length, this.reader.byte());
      case 5:
        return new BigInt64Array(length);
      case 6:
        return new Int32Array(length).subarray(length >> 1);
      case 7:
        return detached(new Int32Array(length));
      default:
        return new Uint8Array(257 * length);
    }
  }

  anything(): unknown {
    const throwing = (): never => {
      throw new ThrownOnPurpose();
    };
    switch (this.reader.byte() % 24) {
      case 0:
        return undefined;
      case 1:
        return null;
      case 2:
        return this.boolean();
      case 3:
      case 4:
      case 5:
        return this.oneOf(specialNumbers);
      case 6:
        return this.reader.float64();
      case 7:
        return -this.reader.byte();
      case 8:
        return this.oneOf(this.#handles);
      case 9:
        return this.address() + this.reader.byte() - 128;
      case 10:
        return BigInt(this.reader.short());
      case 11:
        return Symbol('any');
      case 12:
        return this.functionName();
      case 13:
        return this.oneOf(['', 'x', '\ud800', 'cuMemAlloc\0', 'é'.repeat(200), 'x'.repeat(100_000)]);
      case 14:
        return {};
      case 15:
        return { valueOf: throwing, toString: throwing, [Symbol.toPrimitive]: throwing };
      case 16:
        return [this.reader.byte()];
      case 17:
        return this.callback();
      case 18:
        return new Proxy(this.callback(), { apply: throwing, get: throwing, getPrototypeOf: throwing });
      case 19:
        return new Proxy(new Float64Array(16), { get: throwing, getPrototypeOf: throwing });
      case 20:
        return new ArrayBuffer(this.reader.byte());
      case 21:
        return Promise.resolve();
      default:
        return this.view();
    }
  }
}

function detached<T extends Float64Array | Int32Array>(view: T): T {
  structuredClone(view.buffer, { transfer: [view.buffer as ArrayBuffer] });
  return view;
}

/** A view of a buffer that has since been shortened. */
function shrunk(maxByteLength: number, length: number): Float64Array {
  // Newer than the type definitions.
  const Resizable = ArrayBuffer as unknown as new (bytes: number, options: object) => ArrayBuffer & { resize(bytes: number): void };
  const buffer = new Resizable(maxByteLength, { maxByteLength });
  const view = new Float64Array(buffer);
  buffer.resize(Math.min(length, maxByteLength));
  return view;
}

/** The arguments, limited so that they do not just fill the machine or take long. */
function bounded(name: string, args: readonly unknown[]): readonly unknown[] {
  const limit = (at: number, most: number, impossible = Infinity) =>
    args.map((value, i) => (i === at && typeof value === 'number' && value > most && value < impossible ? most : value));
  if (name === 'allocate' && args[1] !== 0) return limit(0, args[1] === hostKind ? largestHostBytes : totalBytes, impossibleBytes);
  if (name === 'configureSoftware') return limit(0, totalBytes);
  // It may be called when the run has given everything back.
  if (name === 'exportTensor') return args.map((value) => (typeof value === 'function' ? countReleasedTensor : value));
  if (name === 'setLatency') return limit(1, longestLatencyNanoseconds);
  // A driver has no other statuses; 0 would be a call that succeeds without doing anything.
  const isStatus = (value: unknown) => typeof value === 'number' && value >= 1 && value <= 999;
  if (name === 'failCall') return isStatus(args[2]) ? args : args.slice(0, 2);
  if (name === 'failCallAfter') return isStatus(args[3]) ? args : args.slice(0, 3);
  return args;
}

/** In this run. */
let releasedTensors = 0;

function countReleasedTensor(): void {
  releasedTensors++;
}

let latest: Run | undefined;

/** The calls of the latest input, for error reports. */
export function describe(): string {
  const calls = latest?.calls ?? [];
  return calls.map(({ name, args, status = '?' }) => `${name}(${formatArguments(args)}): ${status}`).join('\n');
}

function formatArguments(args: readonly unknown[]): string {
  return args.map(short).join(', ');
}

function short(value: unknown): string {
  return inspect(value, { depth: 0, maxArrayLength: 3, maxStringLength: 40, showProxy: true }).replace(/\s+/g, ' ').slice(0, 80);
}

/** @throws AssertionError if the addon misbehaves. */
export async function run(bytes: Uint8Array): Promise<void> {
  configureFromEnvironment();
  native().openBackend(softwareBackend);
  assert.equal(mailbox[0], 0);
  releasedTensors = 0;
  latest = new Run(bytes);
  await latest.all();
}
