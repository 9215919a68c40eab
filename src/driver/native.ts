/**
 * The only way to native code: no other file in `src/` may load it. This file names the functions that the core uses;
 * a capability can add its own to {@link NativeBinding} where it uses them.
 *
 * Convention for every call below: it leaves its status in `mailbox[0]` and its numeric results in
 * `mailbox[1]`, `mailbox[2]`, …; results that are not numbers are returned. A native call never
 * throws and never trusts an argument. Status 0 is success, a positive status is a `CUresult`, and
 * a negative one is cistern's own (`NativeStatus`).
 *
 * Hot calls take no arguments: reading three numbers through Node-API costs 40 ns, reading them
 * from a shared array 11 ns. Their inputs are written to the mailbox first, starting at
 * `mailbox[0]`, in the order given in each comment.
 *
 * Inside a host function, a call that would wait for a stream leaves CUDA's status 800 (not
 * permitted) instead, because it might wait for the function that is running.
 */
import { AddonMissingError } from '../basics/errors.js';
import { loadAddon } from '../package/addon.js';

/** cistern's own statuses. Positive ones are CUDA's. */
export const NativeStatus = {
  success: 0,
  /** An argument has the wrong type or is out of range, which is a bug in the TypeScript code. */
  invalidArgument: -1,
  /** A stream, event, pool or hold handle that is not live in this environment. */
  staleHandle: -2,
  /** The pointer was never allocated here. */
  foreignPointer: -3,
  /** The pointer was allocated here and already freed. */
  doubleFree: -4,
  /** The pointer is live but was allocated with another size; `mailbox[1]` holds that size. */
  wrongSize: -5,
  /** The driver returned an address above 2^53 - 1; the memory was freed. */
  addressTooLarge: -6,
  /**
   * No backend was opened, another one is already open in this environment, or CUDA cannot be used
   * (`cudaUnavailableReason`).
   */
  noBackend: -7,
  /**
   * A blocking call stopped early because a host function is ready to run: call
   * `runHostFunctions()`, then call again.
   */
  hostFunctionReady: -8,
  /** The host is out of memory. */
  hostOutOfMemory: -9,
  /**
   * The range of a copy, set, advice or prefetch is not inside memory that the device or this
   * process's resources own.
   */
  invalidRange: -10,
  /** No free range of reserved addresses is large enough. */
  outOfAddresses: -11,
  /** The message of a hand-over was attached or discarded, or the environment that made it has ended. */
  staleMessage: -12,
  /** No environment of this process made the message. */
  foreignMessage: -13,
  /** This process exported the memory of the handle. */
  ownMessage: -14,
  /** The process that made the handle belongs to another user. */
  forbiddenProcess: -15,
  /** The handle has another version: `mailbox[1]`. */
  unknownVersion: -16,
  /** The handle is for memory of another backend: `mailbox[1]`, numbered as for `openBackend`. */
  otherBackend: -17,
  /** The handle is for memory of a device that this process does not have. */
  noSuchDevice: -18,
  /** 64 processes have memory of the exporting process open. */
  tooManyImporters: -19,
  /** This process already exports as many buffers as it can. */
  tooManyExports: -20,
  /** The memory belongs to another device than the stream, which has no access to it. */
  noAccess: -21,
  /** A wait for the event is still pending. */
  inUse: -22,
  /** Processes cannot share memory on this system. */
  noProcessMemory: -23,
  /**
   * The stream belongs to another context than its device's primary one: that of the device
   * `mailbox[1]`, or of none that is in use if that is -1.
   */
  foreignContext: -24,
  /** A stream is captured. The call cannot become a node, nor be made during the capture. */
  capturing: -25,
  /** The event was last recorded in a capture that is still open. */
  capturedEvent: -26,
  /** A free-space index of native threads has failed one of its own checks. */
  brokenIndex: -27,
  /** This process is asleep, or falling asleep. */
  asleep: -28,
} as const;

/** What a message refers to, as the addon numbers it. */
export const HandOverContent = { buffer: 0, stream: 1, event: 2 } as const;

/** Kinds of plain memory, as the addon numbers them. */
export const NativeMemoryKind = { device: 0, managed: 1, 'pinned-host': 2, host: 3 } as const;

/** When an arena for native threads records events for frees, as the addon numbers it. */
export const NativeDeallocationEvents = { eager: 0, deferred: 1, off: 2 } as const;

/**
 * The addon's functions. Handles are integers, and are not reused while an object of this
 * environment could still hold them.
 */
export interface NativeBinding {
  /** The version of the package that the addon was built from. */
  readonly version: string;
  /** The CUDA name of each driver function, in the order of the counters. */
  readonly functionNames: readonly string[];
  /**
   * Binds this environment's mailbox (16 numbers) and counters (one number per driver function,
   * then one for host allocations and one for host frees). Call it once per environment, before
   * anything else; a later call binds other arrays. Do not detach either array.
   */
  initialize(mailbox: Float64Array, counters: Float64Array): void;
  /**
   * Opens the backend for this environment: 0 CUDA, 1 software. `noBackend` if the other one is
   * already open.
   */
  openBackend(kind: number): void;
  /**
   * Why CUDA cannot be used: the libraries searched for and what failed, in one sentence; an empty
   * string if CUDA can be used. Loads and initialises the driver, unless this process has already
   * done so.
   */
  cudaUnavailableReason(): string;
  /** `[1]`: the address of the driver's function table. Tests pass it to another library. */
  driverTable(): void;
  /**
   * The functions that the CUDA driver lacks: a line for each, with its name, a tab, and what does not
   * work without it.
   */
  missingDriverFunctions(): string;
  /**
   * The process-wide settings of the software device; zero, or `undefined`, leaves a value as it
   * is. With `onlyFirst`, nothing changes unless this is the first call in the process.
   */
  configureSoftware(
    totalBytes: number,
    deviceCount: number,
    isStrict?: boolean,
    hasConcurrentManagedAccess?: boolean,
    migrationNanoseconds?: number,
    isCoherent?: boolean,
    peers?: string,
    freesWait?: boolean,
    onlyFirst?: boolean,
    hasPageableAccess?: boolean,
  ): void;
  /**
   * What happened to managed memory on the software device at a place: a device, or -1 for the
   * host. `[1]` resident bytes, `[2]` their peak, `[3]` bytes copied here from the host, `[4]` from
   * devices, `[5]` evicted bytes, `[6]` bytes used remotely, `[7]` faults, `[8]` evicted pages,
   * `[9]` thrashes.
   */
  managedActivity(place: number): void;
  /** Resets the counts of every place; peaks become the resident bytes. */
  resetManagedActivity(): void;
  /** `[1]`: how many of the bytes are at a place of the software device; 0 if they are not managed. */
  residentBytes(address: number, bytes: number, place: number): void;
  /** Tells the software device that the host is about to use managed memory directly. */
  accessFromHost(address: number, bytes: number, isWrite: boolean): void;
  /**
   * From now on, records each arrival and departure of a page of managed memory of the software
   * device, after one arrival for each page that already has a place. `pending[0]` is 1 while there
   * are records. It belongs to the native code, which writes it from any thread; do not detach it.
   * `[1]`: 1, or 0 if another environment is recording. A second call starts again.
   */
  beginManagedMoves(pending: Int32Array): void;
  /**
   * Takes the oldest records, as many as fit. `[1]`: how many. Each has seven numbers: nanoseconds
   * since the beginning, address, bytes, place (a device, or -1 for the host), reason, and the
   * stream whose work caused it: its device and its driver handle, 0 for none.
   */
  takeManagedMoves(into: Float64Array): void;
  endManagedMoves(): void;
  /** Delays every later call of a driver function of the software device. */
  setLatency(functionName: string, nanoseconds: number): void;
  /**
   * Makes the nth next call of a driver function of the software device fail with a status. `[1]`:
   * 1 if the previously requested failure has not happened yet.
   */
  failCall(functionName: string, nth: number, status: number): void;
  /**
   * Once the failure requested for the first function has happened, the nth call of the second
   * (which may be the same) fails.
   */
  failCallAfter(firstName: string, functionName: string, nth: number, status: number): void;
  /** `[1]`: how many streams of the software device were created and not destroyed, by any code. */
  liveStreams(): void;
  /** `[1]`: the driver's version, as CUDA numbers it (13000 for 13.0). */
  driverVersion(): void;
  statusName(status: number): string;
  statusDescription(status: number): string;
  /** `[1]`: the operating system's id of this thread. */
  threadId(): void;
  /**
   * Calls the function from the event loop if memory of an ended environment, or memory that was
   * freed while a stream was stalled, still cannot be freed because a wait for the devices fails.
   * Called once, until such a wait succeeds or fails in another way. The function must not throw.
   */
  onKeptOrphans(callback: () => void): void;
  /** `[1]`: the status of the last such wait, `[2]`: the bytes that cannot be freed. */
  readKeptOrphans(): void;

  /** `[1]`: the number of devices. */
  deviceCount(): void;
  deviceName(device: number): string;
  /** `[1]`: 1 if this process has a context on the device. */
  deviceIsInUse(device: number): void;
  /** Loads NVML from a path, or by a name that the system finds. Returns why it cannot, or an empty text. */
  openNvml(path: string): string;
  /**
   * Asks NVML about a device by its UUID as NVML writes it: NVML's status, its status for the list of processes, total, free and
   * used bytes, and pairs of a process and its bytes, -1 if unknown. `noBackend` if NVML is not loaded.
   */
  nvmlDevice(uuid: string): Float64Array;
  /** Has the library of a memory checker be told about pools. Returns why it cannot, or an empty text. */
  openToolMemory(path: string): string;
  /** 0, 1: the memory of a pool begins, ends; 2, 3: an allocation. `noBackend` if nobody listens. */
  tellToolMemory(what: number, pointer: number, bytes: number): void;
  /** Under `cistern run`, what this thread allocates belongs to the account. Returns what `leaveAccountOutside` needs. */
  enterAccountOutside(name: string): number;
  leaveAccountOutside(before: number): void;
  /**
   * Asks the driver for a step of a process: 0 its state, 1 lock, 2 checkpoint, 3 restore, 4 unlock. The promise, which does not
   * keep the process alive, resolves with the status and with the state afterwards, -1 if unknown.
   */
  stepProcess(step: number, process: number, timeoutMilliseconds: number): Promise<readonly [status: number, state: number]>;
  /** Keeps calls of all environments from the driver, see native/cuda/asleep_table.h. `inUse` if they are kept already. */
  beginProcessSleep(): void;
  /** All work is done from now on. */
  noteProcessAsleep(): void;
  /** Lets calls through again, after those that were kept. */
  endProcessSleep(): void;
  /** The UUID as 32 lower-case hexadecimal digits. */
  deviceUuid(device: number): string;
  /** `[1]`: total bytes. */
  deviceTotalBytes(device: number): void;
  /** `[1]`: the value of a `CUdevice_attribute`. */
  deviceAttribute(device: number, attribute: number): void;
  /** `[1]` least (numerically greatest), `[2]` greatest priority. */
  deviceStreamPriorityRange(device: number): void;
  /** `[1]` free bytes, `[2]` total bytes. */
  deviceMemoryInfo(device: number): void;
  /** Blocks until everything queued on the device has run, or `hostFunctionReady`. */
  synchronizeDevice(device: number): void;
  /** `[1]`: 1 if streams of the device can be given access to memory of the peer. */
  canAccessPeer(device: number, peer: number): void;
  /**
   * Gives the streams of a device access to the peer's memory: to plain memory, for the whole
   * process, and to this environment's present and future pools and virtual memory. `[1]`: 1 if this
   * environment had not done so before.
   */
  enablePeerAccess(device: number, peer: number): void;
  /**
   * Disables the access once everything queued on the device has run, or leaves
   * `hostFunctionReady`. `[1]`: 1 if this environment had enabled it.
   */
  disablePeerAccess(device: number, peer: number): void;

  /** `[1]`: a handle. */
  createStream(device: number, nonBlocking: boolean, priority: number): void;
  /**
   * `[1]`: a handle for a stream created elsewhere; 1 is the legacy default stream, 2 the per-thread
   * default stream. `foreignContext` if it belongs to another context, unless the driver cannot tell.
   */
  wrapStream(device: number, address: number): void;
  /** Destroys a created stream, forgets a wrapped one. Work queued on it still runs. */
  releaseStream(stream: number): void;
  /** `[1]`: the driver's id for the stream, unique for the life of the process. */
  streamId(stream: number): void;
  /** `[1]`: the driver's own handle (`CUstream`). */
  streamAddress(stream: number): void;
  /** `[1]` priority, `[2]` 1 if non-blocking. */
  streamInfo(stream: number): void;
  /**
   * Blocks until everything queued on the stream before this call has run, or `hostFunctionReady`.
   * If called again right after `runHostFunctions`, it goes on waiting for the same point, even if
   * the host functions have queued more work or released the stream.
   */
  synchronizeStream(stream: number): void;
  /** Hot. In: stream. `[1]`: 1 if everything queued has run, otherwise 0. */
  queryStream(): void;
  /**
   * Resolves with a status once everything queued on the stream before this call has run. Blocks no
   * thread of Node's pool.
   */
  streamCompletion(stream: number): Promise<number>;
  /**
   * Queues a JavaScript function: the stream pauses there until the function has returned. The
   * function receives a status: success, or the reason why it can never run in its turn. May stop
   * with `hostFunctionReady`.
   */
  launchHostFunction(stream: number, callback: (status: number) => void): void;
  /** Runs every host function of this environment whose turn has come. `[1]`: how many ran. */
  runHostFunctions(): void;
  /** Blocks until a host function of this environment is ready to run, or none is outstanding. */
  waitForHostFunction(): void;
  /**
   * Hot enough. `[1]`: the number of host functions of this environment that are queued or running.
   */
  outstandingHostFunctions(): void;
  /**
   * Pauses the stream here until the hold is released. `[1]`: a handle. May stop with
   * `hostFunctionReady`.
   */
  holdStream(stream: number): void;
  releaseHold(hold: number): void;
  /**
   * Ends every hold of the process, and makes streams skip host functions from now on. Used at the
   * end of the process.
   */
  releaseAllStalls(): void;

  /**
   * Begins to record the work queued on a stream: mode 0 is global, 1 thread-local, 2 relaxed.
   */
  beginCapture(stream: number, mode: number): void;
  /** `[1]`: the handle of a graph. Only on the stream where cistern has begun the capture. */
  endCapture(stream: number): void;
  /**
   * Ends a capture without a graph; does nothing if the stream is not captured. `capturing` if the
   * capture cannot be ended on this stream and thread.
   */
  abandonCapture(stream: number): void;
  /**
   * `[1]`: 0 if the stream is not captured, 1 if it is, 2 if the capture is invalid. `[2]`: the capture's id, or
   * 0 unless it is valid.
   */
  captureStatus(stream: number): void;
  destroyGraph(graph: number): void;
  /** `[1]`: the handle of an executable graph. */
  instantiateGraph(graph: number, freesOnLaunch: boolean): void;
  destroyGraphExec(exec: number): void;
  /** `[1]`: why an update fails, as CUDA numbers it. */
  updateGraphExec(exec: number, graph: number): void;
  /** `onLost` is called, with a status, if the graph has host functions that will never run. */
  launchGraph(exec: number, stream: number, onLost: (status: number) => void): void;
  uploadGraph(exec: number, stream: number): void;
  /** Adds a graph to the one that a stream is captured into, as the next node of the stream. */
  addChildGraph(stream: number, graph: number): void;
  /** Writes the number of nodes of each of CUDA's 14 kinds to `counts`. `[1]`: of all nodes. */
  countGraphNodes(graph: number, counts: Float64Array): void;
  writeGraph(graph: number, path: string): void;
  /** The same as `retainInGraph`, for the graph that a stream is captured into. */
  retainInCapture(stream: number, object: number): void;
  /** Makes a graph retain an object, under a number other than 0 that `takeEndedPart` returns. */
  retainInGraph(graph: number, object: number): void;
  /** Calls the function from the event loop when there is something to take. */
  onEndedParts(callback: () => void): void;
  /**
   * `[1]`: the number of an object whose last graph, executable graph and launch have ended, or 0. Hot,
   * because waits call it. Takes no input.
   */
  takeEndedPart(): void;

  /** `[1]`: a handle. */
  createEvent(device: number, timing: boolean): void;
  destroyEvent(event: number): void;
  /** Hot. In: event, stream, 1 to refuse a captured stream, otherwise 0. */
  recordEvent(): void;
  /** Hot. In: stream, event, 1 to refuse captured streams and events, otherwise 0. */
  waitEvent(): void;
  /**
   * Hot. In: event. `[1]`: 1 if the recorded work has run (or nothing was recorded), otherwise 0.
   */
  queryEvent(): void;
  /**
   * Blocks until the event's latest recording before this call has happened, or
   * `hostFunctionReady`. Can be repeated like `synchronizeStream`.
   */
  synchronizeEvent(event: number): void;
  /** Resolves with a status once the event's latest recording before this call has happened. */
  eventCompletion(event: number): Promise<number>;
  /** `[1]`: milliseconds between two timing events. */
  elapsedMilliseconds(start: number, end: number): void;

  /**
   * Hot. In: bytes, kind (`NativeMemoryKind`), device, alignment (for kind host only). For pinned host memory also how many threads
   * clear what the addon then registers, 0 for memory that the driver allocates; and whether that will do if registering fails.
   * `[1]`: address. May stop with `hostFunctionReady`, except for kind host.
   */
  allocate(): void;
  /**
   * Hot. In: address, bytes, kind, device, stream. May stop with `hostFunctionReady`, except for kind
   * host, which needs no stream. Waits for what is queued on the stream, or on all devices if it has
   * been disposed. Memory that cannot be freed now, because a hold or another thread stalls a stream,
   * is freed later.
   */
  deallocate(): void;
  /** Hot. In: bytes, pool, stream. `[1]`: address. */
  allocateAsync(): void;
  /** Hot. In: address, bytes, pool, stream. */
  deallocateAsync(): void;
  /**
   * `[1]`: a handle for a new stream-ordered pool of device memory, of managed memory without a
   * preferred location, or of pinned host memory at a NUMA node, if one is given; `kind` is a
   * `NativeMemoryKind` other than `host`. Allocations of an exportable one, whose kind must be
   * `device`, can be exported to other processes. A maximum of Infinity stands for
   * the driver's own limit. CUDA's
   * statuses 1 and 801 mean that the driver has no such pools.
   */
  createPool(
    device: number,
    releaseThresholdBytes: number,
    kind: number,
    isExportable: boolean,
    maximumBytes: number,
    numaNode: number | undefined,
  ): void;
  /**
   * A DLPack capsule for an array at an address, whose strides are in elements. `released` is called
   * from the event loop after the deleter was called; it must not throw. The status is CUDA's 801
   * (not supported) if the runtime cannot tag externals.
   */
  exportTensor(
    address: number,
    deviceType: number,
    deviceId: number,
    code: number,
    bits: number,
    lanes: number,
    byteOffset: number,
    flags: number,
    isVersioned: boolean,
    shape: Float64Array,
    strides: Float64Array,
    released: () => void,
  ): object;
  /**
   * The tensor of a capsule: `[1]` 1 if it is versioned, `[2]` the address, `[3]` the type of device,
   * `[4]` its number, `[5]` the number of dimensions (-1: no shape), `[6]` the code of the elements,
   * `[7]` their bits, `[8]` their lanes, `[9]` the byte offset, `[10]` the flags, `[11]` the major
   * and `[12]` the minor version, `[13]` 1 if there are strides. `numbers` (128 or more) gets the
   * shape from 0 on and the strides from 64 on. NaN stands for an integer that is not exact.
   * `invalidArgument` if it is not a capsule, `staleHandle` if it was already consumed.
   */
  inspectTensor(capsule: unknown, numbers: Float64Array): void;
  /**
   * Consumes a capsule. `[1]`: a handle. Until it is released, ordinary host memory of the tensor
   * counts as known memory.
   */
  takeTensor(capsule: unknown): void;
  /** Calls the deleter. */
  releaseTensor(tensor: number): void;
  /**
   * `[1]`: a handle for a pool that was created elsewhere; address 0 is the device's default pool.
   * @param isCurrent whether to open the device's current pool, and ignore the address
   */
  openPool(device: number, address: number, isCurrent: boolean): void;
  /** Makes the pool the current one of its device. */
  makePoolCurrent(pool: number): void;
  /** `[1]`: the driver's own handle (`CUmemoryPool`). */
  poolAddress(pool: number): void;
  /**
   * Waits for everything queued on the device, frees the memory that this environment allocated
   * from the pool, and destroys the pool unless it was created elsewhere. If something stalls a
   * stream, a later call does this instead.
   */
  destroyPool(pool: number): void;
  /** The live allocations of a pool: address and bytes of each, in any order. */
  poolAllocations(pool: number): Float64Array;
  trimPool(pool: number, bytesToKeep: number): void;

  /**
   * Reserves addresses for memory of a device. The status is CUDA's 801 (not supported) if the
   * device has no virtual memory management. `[1]`: a handle, `[2]` the page size, `[3]` the size
   * of the range in whole pages, `[4]` where it begins.
   */
  reserveAddresses(device: number, bytes: number): void;
  /**
   * Waits for everything queued on the device, then returns the mapped memory and the addresses. If
   * something stalls a stream, or the driver refuses, a later call does this instead.
   */
  freeAddresses(reservation: number): void;
  /** Maps memory at the lowest free addresses. `[1]`: the address. May stop like `allocate`. */
  allocateVirtual(reservation: number, bytes: number): void;
  /**
   * Frees an allocation, or whole pages of adjacent ones. On `wrongSize`, `[1]` is the size from
   * this address to the end of the allocation. May stop, or free later, like `deallocate`.
   */
  deallocateVirtual(reservation: number, address: number, bytes: number, stream: number): void;
  /** The address and the bytes of each range of live allocations, by address; adjacent ones are one range. */
  liveExtents(reservation: number): Float64Array;
  /** `[1]`: the bytes of the pages of live allocations that are not mapped. `[2]`: those of free pages that are. */
  absentBytes(reservation: number): void;
  /**
   * Waits for the work queued on the devices of the process. The status is CUDA's 600 (not ready) if
   * something stalls a stream, because the wait might last forever; `inUse` if another environment has
   * part of the memory. May stop with `hostFunctionReady`.
   */
  awaitBeforeSleep(reservation: number): void;
  /**
   * The same, and then unmaps every page of live allocations. If the driver refuses one, the pages before
   * it stay unmapped, and the call can be repeated.
   */
  unmapVirtual(reservation: number): void;
  /**
   * Maps new memory to the pages of live allocations that are not mapped. If that fails, they are unmapped
   * again, as far as the driver permits, and the call can be repeated. May stop like `allocate`.
   */
  mapVirtual(reservation: number): void;
  /**
   * Maps new memory that other processes can map, or with a descriptor, memory of another process, which can only be read.
   * `[1]`: a handle of a reservation, `[2]` where it begins, `[3]` its bytes in whole pages, `[4]` a descriptor of new memory.
   * `inUse` if the addresses are taken and none but them will do. May stop like `allocate`.
   * @param address 0: any
   * @param descriptor 0: new memory
   */
  mapLasting(device: number, bytes: number, address: number, onlyThere: boolean, descriptor: number): void;
  /** From now on this process can only read such memory. */
  protectLasting(reservation: number): void;

  /** Listens for processes of this user, at an absolute path. `[1]`: a descriptor of the socket, `[2]` one of its lock. */
  listenLocal(path: string): void;
  /**
   * `[1]`: a descriptor of a socket to who listens at an absolute path, whose calls block for so many milliseconds at most. If the system refuses this call or one of
   * the next ones, the status is CUDA's 304 and `[1]` the number of the error, such as EAGAIN; EPERM: another user listens.
   */
  connectLocal(path: string, milliseconds: number): void;
  /** `[1]`: a descriptor of a socket, whose calls do not block, `[2]` the number of the process. */
  acceptLocal(listener: number): void;
  /** Sends a message of 1 to 163,840 bytes, with a descriptor unless that is 0. */
  sendLocal(socket: number, message: string, descriptor: number): void;
  /** The next message; `[1]`: the descriptor that came with it, or 0. */
  receiveLocal(socket: number): string;
  /** Waits until one or more sockets have a message or an end, for ever if the time is -1. Their places in the array. */
  pollLocal(sockets: Float64Array, milliseconds: number): Float64Array;
  closeDescriptor(descriptor: number): void;
  /** `[1]`: a `CUmemPool_attribute`'s value. A release threshold of 2^64 - 1 reads as Infinity. */
  poolAttribute(pool: number, attribute: number): void;
  /** Infinity is written as 2^64 - 1. */
  setPoolAttribute(pool: number, attribute: number, value: number): void;

  /**
   * Copies between two addresses (device, managed, pinned or host memory of resources) in stream
   * order. The driver may block on memory of kind host, except while a host function or a hold of
   * this environment stalls a stream. May stop with `hostFunctionReady`.
   */
  copy(destination: number, source: number, bytes: number, stream: number): void;
  /**
   * Copies `bytes` from a view's start to an address, in stream order; the host bytes have been
   * read when it returns. May stop like `copy`.
   */
  copyFromHost(destination: number, source: ArrayBufferView, bytes: number, stream: number): void;
  /**
   * Copies into a view in stream order and blocks until done, or `hostFunctionReady`. If repeated
   * like `synchronizeStream`, it copies once. `invalidArgument` if the view is too small or
   * detached.
   */
  copyToHostSync(destination: ArrayBufferView, source: number, bytes: number, stream: number): void;
  /**
   * Queues a copy out of device memory now, and resolves with the bytes, or with a status on
   * failure. With a destination it fills that and resolves with a status: `invalidArgument` if the
   * destination is too small or detached. May stop like `copy`.
   */
  copyToHost(source: number, bytes: number, stream: number, destination?: ArrayBufferView): Promise<ArrayBuffer | number>;
  /** Sets `count` elements of 1 or 4 bytes to an unsigned value that fits them, in stream order. */
  set(destination: number, value: number, elementBytes: 1 | 4, count: number, stream: number): void;
  /** Location types: 1 a device, 2 the host. */
  advise(address: number, bytes: number, advice: number, locationType: number, locationId: number): void;
  prefetch(address: number, bytes: number, locationType: number, locationId: number, stream: number): void;
  /** `[1]`: one of `CUmem_range_attribute` 1 to 4. */
  rangeAttribute(address: number, bytes: number, attribute: number): void;
  /**
   * An array over managed, pinned or ordinary host memory of resources. The status is CUDA's 801
   * (not supported) if the runtime does not allow arrays over foreign memory, and `invalidRange`
   * for any other memory. Call `endView` before the memory is freed.
   */
  viewFromHost(address: number, bytes: number): ArrayBuffer;
  /** Detaches an array that `viewFromHost` made. */
  endView(view: ArrayBuffer): void;
  /** `[1]`: a `NativeMemoryKind`, or -1 for memory unknown to the driver; `[2]`: the device. */
  pointerInfo(address: number): void;

  /**
   * Starts checking stream order in every environment of the process, until `endOrderCheck` has
   * been called for each start. `cells[0]` is the number of the operation that JavaScript is about
   * to submit, 0 for none; `cells[1]` counts the reports that this environment's calls caused. A
   * second call starts again with other cells.
   */
  beginOrderCheck(cells: Float64Array): void;
  /** When the last environment ends its check, reports that were not taken are lost. */
  endOrderCheck(): void;
  /**
   * Takes reports about the calls of this environment, and of threads that do not check, as many as
   * fit into `cells`. `[1]`: how many were taken; `[2]`: how many were lost for lack of space since
   * the last call.
   *
   * A report has 15 numbers: the kind, the address and size of the memory that both sides share,
   * then the earlier side and the later one, each with: operation, access, stream (-1: none),
   * address, bytes, number (0: none, or another environment's). `src/driver/order-checker.ts` turns
   * them into words.
   */
  takeOrderReports(cells: Float64Array): void;
  /**
   * While stream order is checked: records a use of memory in a stream's order that the driver does
   * not see.
   */
  touch(address: number, bytes: number, stream: number, isWrite: boolean): void;
  /**
   * While stream order is checked: memory cut out of an allocation belongs to a stream until
   * `declareFree`.
   */
  declareAllocation(address: number, bytes: number, stream: number): void;
  /** Ends what `declareAllocation` began. */
  declareFree(address: number, bytes: number, stream: number): void;

  /**
   * Calls the function from the event loop when memory that this environment handed over is
   * returned. Does not keep the process alive. The function must not throw.
   */
  onReturned(callback: () => void): void;
  /**
   * Calls the function from the event loop when an environment whose memory this one has attached
   * asks for a garbage collection. The function must not throw, and must end with
   * `answerCollectionRequest`.
   */
  onCollectionRequest(callback: () => void): void;
  answerCollectionRequest(): void;
  /**
   * Asks the environments that have attached memory of this one for a garbage collection, except
   * those that were asked less than 100 ms ago. `[1]`: 1 if any has yet to answer.
   */
  askToCollect(): void;
  /**
   * Waits until they have answered, or the time is over. This also counts as this environment's own
   * answer, before and during the wait, so first collect its garbage and free its attached memory.
   */
  awaitCollections(milliseconds: number): void;
  /**
   * Lets other environments ask this one for memory that its resources keep. The function is called from the event loop
   * with a kind, the device of a resource that keeps such memory, and bytes. It must not throw, and returns how many bytes it returned; it is called
   * again until that is 0, or enough. `thread` is Node's number of this thread.
   */
  onKeptRequest(thread: number, callback: (kind: number, device: number, bytes: number) => number): void;
  /**
   * Adds to what a resource holds, or subtracts from it; infinite if only the driver knows. `keeper` is 0 for one that held nothing, which gets a
   * label then. `[1]`: its number, or 0 if it holds nothing any more.
   */
  noteKept(keeper: number, kind: number, device: number, label: string, bytes: number): void;
  /**
   * Asks the environments that hold memory of a kind, or of a device, to return so many bytes of it, and blocks until they have, all have answered, or
   * the time is over. The time counts from the first request that an environment has not answered. This also counts as this
   * environment's own answer, so first return its own. `[1]`: the bytes that were returned meanwhile.
   */
  askForKept(kind: number, device: number, bytes: number, milliseconds: number): void;
  /**
   * What resources of other environments hold, the largest first, as text: `worker 1's pool 'a' holds 900 MiB, and did not answer`. `[1]`: the bytes,
   * infinite if only the driver knows.
   */
  keptElsewhere(kind: number, device: number): string;
  /**
   * Hands memory over to other environments, ordered after the work queued on the stream. Its
   * message can be attached once, or, if it is shared, until this environment returns its own
   * attachment. `[1]`: the hand-over, `[2]` the message, `[3]` its nonce, `[4]` this environment's
   * attachment if it is shared.
   */
  handOver(
    address: number,
    bytes: number,
    byteLength: number,
    alignment: number,
    kind: number,
    device: number,
    stream: number,
    isShared: boolean,
  ): void;
  /**
   * `[1]` bytes, `[2]` length of the contents, `[3]` alignment, `[4]` kind, `[5]` device, `[6]` 1 if
   * it is shared. `staleMessage` or `foreignMessage` if it cannot be attached.
   */
  handOverInfo(message: number, nonce: number): void;
  /**
   * Attaches the memory, and makes the stream wait for the work queued before the hand-over. `[1]`:
   * the hand-over, `[2]` the attachment, `[3]` the address.
   */
  attachHandOver(message: number, nonce: number, stream: number): void;
  /**
   * Makes a new message of an attachment, which ends; or, if the memory is to be shared, stays with
   * this environment. `[1]`: the message, `[2]` its nonce.
   */
  handOn(handOver: number, attachment: number, byteLength: number, stream: number, isShared: boolean): void;
  /** Ends an attachment, after everything queued on the stream. */
  giveBack(handOver: number, attachment: number, stream: number): void;
  /**
   * Prevents the message from being attached, unless another environment shares it. `content` is a
   * {@link HandOverContent}. `[1]`: 1 if it could be attached until now.
   */
  discardMessage(message: number, nonce: number, content: number): void;
  /** For the environment that the memory belongs to: closes its message, unless it is attached. */
  recallHandOver(handOver: number): void;
  /**
   * Makes a message of a stream that this environment owns, whose id is given. The handle is released;
   * or, if the stream is to be shared, stays valid, and its release ends the message. `[1]`: the
   * message, `[2]` its nonce.
   */
  handOverStream(stream: number, id: number, isShared: boolean): void;
  /**
   * As `handOverStream`. `inUse` if an `eventCompletion` waits for the event, unless the event is
   * to be shared.
   */
  handOverEvent(event: number, isShared: boolean): void;
  /**
   * A handle of this environment for a stream. If it is not shared, the environment now owns it. `[1]`:
   * the handle, `[2]` the device, `[3]` 1 if it is shared, `[4]` its id.
   */
  attachStream(message: number, nonce: number): void;
  /** As `attachStream`, without an id. */
  attachEvent(message: number, nonce: number): void;
  /**
   * Takes the next memory of this environment that has been returned. Waits for the devices if an
   * environment ended while it used the memory; if something stalls a stream, that memory is left for
   * later. `[1]`: the hand-over, or 0 if there is none; `[2]`: 1 if all work that used the memory has
   * run. Otherwise call `followReturned` next.
   */
  takeReturned(): void;
  /**
   * Makes a stream wait for all work that used the memory. On failure, the memory can be taken
   * again.
   */
  followReturned(handOver: number, stream: number): void;

  /**
   * Calls the function from the event loop when another environment needs superblocks. Does not keep
   * the process alive. The function must not throw.
   */
  onArenaRequest(callback: () => void): void;
  /**
   * Opens the arena of a name on a device, or makes it from one allocation. `bytes` is a multiple of
   * `superblockBytes`, a power of two of at least 256. `thread` is Node's number of this thread.
   * `[1]`: the arena, which every environment knows by this number; `[2]` its bytes, `[3]` those of a
   * superblock, `[4]` its kind: as the first that opened it gave them. May stop like `allocate`.
   */
  openArena(name: string, device: number, kind: number, bytes: number, superblockBytes: number, thread: number): void;
  /**
   * Undoes one `openArena`. The arena ends when no environment has it open or has memory of it.
   * Then its block is freed like memory of an ended environment.
   */
  closeArena(arena: number): void;
  /**
   * Allocates whole superblocks, and makes the stream wait for their earlier frees. `[1]`: the
   * address. CUDA's status 2 (out of memory) if there is no room.
   */
  allocateSuperblocks(arena: number, bytes: number, stream: number): void;
  /**
   * Frees an allocation, or whole superblocks of adjacent ones, after everything queued on the
   * stream. On `wrongSize`, `[1]` is the size from this address to the end of the allocation.
   */
  freeSuperblocks(arena: number, address: number, bytes: number, stream: number): void;
  /**
   * `[1]` used bytes, `[2]` their peak, `[3]` the largest free bytes in one piece, `[4]` how many
   * environments have it open or use it, `[5]` the bytes that this one uses.
   */
  arenaInfo(arena: number): void;
  /**
   * Asks all environments that have superblocks to free what they can, and blocks until there is room
   * for `bytes`, all have answered, or `left` milliseconds are over; but for at most 50 ms, so that a
   * worker that is terminated meanwhile can end. It does not wait for an environment that was asked
   * `patience` milliseconds ago, by any environment, and has not answered since. `[1]`: how many were
   * asked, `[2]` and `[3]` the bytes that were freed in the arena before the call and after it, `[4]` 1
   * if there is room now, `[5]` the request if some may still answer in time, or 0. Returns the threads
   * of the environments that have not answered.
   * @param request 0, or the request to go on waiting for, without asking again
   */
  askForSuperblocks(arena: number, bytes: number, patience: number, left: number, request: number): Float64Array;
  /** Hot. `[1]`: 1 if `takeArenaRequest` may have a request. */
  isAskedForSuperblocks(): void;
  /** `[1]`: an arena of which superblocks are needed, or 0; `[2]`: the request to answer. */
  takeArenaRequest(): void;
  answerArenaRequest(arena: number, request: number): void;

  /**
   * Opens counts that all environments of the process share by name; those with a limit and those
   * without have names of their own. Every environment has one share, opened any number of times.
   * `[1]`: its handle, `[2]`: the limit, which the first that opens them decides.
   */
  openShare(isLimited: boolean, name: string, limitBytes: number): void;
  /** Undoes one `openShare`. The share ends after the last close, once nothing is counted in it. */
  closeShare(share: number): void;
  /** Hot. In: share, bytes. Counts an allocation, unless it would exceed the limit. `[1]`: 1 if it did. */
  countAllocation(): void;
  /** Hot. In: share, bytes. Ends the count of an allocation. */
  countFree(): void;
  countFailure(share: number): void;
  /**
   * The counts of all environments: `[1]` bytes, `[2]` their peak, `[3]` their total, `[4]` to `[6]`
   * the same of allocations, `[7]` failures, `[8]` how many environments have a share. Memory of
   * ended environments counts until it is freed.
   */
  readShare(share: number): void;
  /** Frees memory that ended environments left, if it is counted here. */
  settleShare(share: number): void;

  /**
   * Watches an object without keeping it alive. `[1]`: a slot, from 0, dense, reused after
   * `unwatch`.
   */
  watch(object: object): void;
  unwatch(slot: number): void;
  /**
   * Writes the slots whose objects were collected into `slots`. `[1]`: how many were written, at
   * most `slots.length`. The slots stay watched until `unwatch`.
   */
  collectedSlots(slots: Int32Array): void;
  /**
   * Queues copies whose memory moves together: `list` has a destination, a source and a number of bytes for each. `[1]`: how many of the
   * first are queued, if one is refused; nothing depends on the others.
   */
  copyTogether(list: Float64Array, stream: number): void;
}

/** The number of mailbox cells; calls above use at most this many. */
const mailboxLength = 16;

/** Inputs and outputs of native calls; see the top of this file. */
export const mailbox = new Float64Array(mailboxLength);

/**
 * A result of the last call, to be stored and used often. V8 boxes a number from a `Float64Array` on
 * the heap, and copies the box with it; a small integer needs no box.
 */
export function keptResult(cell: number): number {
  const value = mailbox[cell] as number;
  const small = value | 0;
  return small === value ? small : value;
}

let addon: NativeBinding | undefined;
let loaded: NativeBinding | undefined;
let driverCounters = new Float64Array(0);

/**
 * The addon. The first call loads it, so importing the package touches no driver.
 * @throws AddonMissingError if there is none that can be loaded.
 */
export function native(): NativeBinding {
  return loaded ?? load();
}

/** Apart (V8: inlining). */
function load(): NativeBinding {
  const binding = loadAddon((reason, cause) => new AddonMissingError(reason, cause)) as NativeBinding;
  driverCounters = new Float64Array(binding.functionNames.length + 2);
  binding.initialize(mailbox, driverCounters);
  // Node-API leaves an object with slow properties; a copy has fast ones.
  addon = { ...binding };
  loaded = addon;
  return addon;
}

/**
 * Makes `native()` return replacements for some of the addon's functions. Without an argument,
 * restores the addon's own.
 */
export function interpose(replace?: (addon: NativeBinding) => Partial<NativeBinding>): void {
  native();
  const own = addon as NativeBinding;
  loaded = replace === undefined ? own : { ...own, ...replace(own) };
}

// When the process ends, Node waits for each worker before it notifies the addon, and a worker that
// waits for a stream stalled by another thread would never end. So the main thread must do this,
// even if only workers use the addon.
process.once('exit', () => {
  if (loaded === undefined && !mayHaveWorkers()) return;
  if (!process.getBuiltinModule('node:worker_threads').isMainThread) return;
  try {
    native().releaseAllStalls();
  } catch {
    // If the addon cannot be loaded, nothing can be stalled.
  }
});

/** Node's number of this thread, 0 for the main one, without loading the module that tells it. */
export function threadNumber(): number {
  return mayHaveWorkers() ? process.getBuiltinModule('node:worker_threads').threadId : 0;
}

/** Whether the process may have workers: it has none unless the module that starts them is loaded. */
function mayHaveWorkers(): boolean {
  const names: unknown = Reflect.get(process, 'moduleLoadList');
  return !Array.isArray(names) || names.some((name) => String(name).endsWith(' worker_threads'));
}

/**
 * How often this environment has called each driver function since it started, in the order of
 * `functionNames`.
 */
export function counters(): Float64Array {
  native();
  return driverCounters;
}
