/**
 * Questions that only a GPU answers, each in seconds: `node test/gpu/probes.mjs NAME` prints the answer of one as a line of JSON;
 * `--list` prints their names. run-gpu.mjs asks them, one process for each. Sizes are smaller on a small device, so that they
 * also run on the software device and the strict driver.
 */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const dist = new URL('../../dist/', import.meta.url).href;

const probes = {
  /** 88 and 100 decide whether a copy from an array may be read after it returned; persistence decides what the start of a process costs. */
  machine({ device }) {
    const names = [
      'pageableMemoryAccess',
      'pageableMemoryAccessUsesHostPageTables',
      'hostRegisterSupported',
      'canUseHostPointerForRegisteredMemory',
      'concurrentManagedAccess',
      'virtualMemoryManagementSupported',
      'memoryPoolsSupported',
    ];
    const asked = 'driver_version,persistence_mode,pcie.link.gen.current,pcie.link.width.current,compute_mode,mig.mode.current';
    const { stdout } = spawnSync('nvidia-smi', [`--query-gpu=${asked}`, '--format=csv,noheader'], { encoding: 'utf8' });
    return {
      name: device.name,
      freeBytes: device.memoryInfo().freeBytes,
      attributes: Object.fromEntries(names.map((name) => [name, device.attribute(name)])),
      smi: stdout?.trim(),
    };
  },

  /** Milliseconds that a process takes to start and open the device, while another one has it open. */
  starts({ device }) {
    device.memoryInfo();
    const script = `const { Device } = await import(${JSON.stringify(`${dist}index.js`)}); Device.get().memoryInfo();`;
    const start = () => milliseconds(() => spawnSync(process.execPath, ['--input-type=module', '--eval', script], { stdio: 'ignore' }));
    return { node: milliseconds(() => spawnSync(process.execPath, ['--eval', '0'])), withDevice: times(4, start) };
  },

  /** GiB a second: the limit for spilling and sleeping. */
  copies({ core, stream, cuda, large }) {
    const bytes = Math.min(large, core.GiB);
    const other = new core.Stream({ nonBlocking: true });
    const pinned = new core.PinnedHostMemoryResource({ populateThreads: 16 });
    const [there, back] = [cuda.allocate(bytes, stream), cuda.allocate(bytes, stream)];
    const [here, kept] = [pinned.allocate(bytes, stream), pinned.allocate(bytes, stream)];
    const rate = (copy) => {
      copy();
      return rounded(bytes / core.GiB / (median(times(5, () => milliseconds(copy))) / 1000));
    };
    return {
      toDevice: rate(() => {
        core.copy(there, here, bytes, stream);
        stream.synchronizeSync();
      }),
      toHost: rate(() => {
        core.copy(here, there, bytes, stream);
        stream.synchronizeSync();
      }),
      bothAtOnceEach: rate(() => {
        core.copy(there, here, bytes, stream);
        core.copy(kept, back, bytes, other);
        stream.synchronizeSync();
        other.synchronizeSync();
      }),
    };
  },

  /** Milliseconds of an allocation of virtual memory and of its free. */
  virtual({ core, stream, large }) {
    const virtual = new core.VirtualMemoryResource();
    const answer = {};
    for (const bytes of [2, 16, 64, 256, 1024].map((count) => count * core.MiB).filter((size) => size <= large)) {
      const allocations = [];
      const frees = [];
      for (let i = 0; i < 5; i++) {
        let pointer;
        allocations.push(
          milliseconds(() => {
            pointer = virtual.allocate(bytes, stream);
          }),
        );
        frees.push(milliseconds(() => virtual.deallocate(pointer, bytes, stream)));
      }
      answer[core.formatBytes(bytes)] = { allocate: median(allocations), free: median(frees) };
    }
    return answer;
  },

  /** Milliseconds for each GiB; and whether the contents come back. */
  async sleep({ core, stream, large }) {
    const { sleepResource, wakeResource } = await entry('serving');
    const virtual = new core.VirtualMemoryResource();
    const pointer = virtual.allocate(large, stream);
    core.set(pointer, 7, 1, large, stream);
    stream.synchronizeSync();
    const slept = [];
    const woken = [];
    for (let i = 0; i < 3; i++) {
      slept.push((await sleepResource(virtual, { keep: 'host' })).elapsedMilliseconds);
      woken.push((await wakeResource(virtual)).elapsedMilliseconds);
    }
    await sleepResource(virtual, { keep: 'host' });
    await wakeResource(virtual, { stagingBytes: large });
    const again = [(await sleepResource(virtual, { keep: 'host', unchanged: true })).elapsedMilliseconds];
    await wakeResource(virtual);
    const read = new Uint8Array(4096);
    core.copyToHostSync(read, pointer + large - read.length, stream);
    const perGiB = (all) => all.map((each) => rounded((each * core.GiB) / large));
    return {
      sleepPerGiB: perGiB(slept),
      wakePerGiB: perGiB(woken),
      sleepUnchangedPerGiB: perGiB(again),
      isRight: read.every((byte) => byte === 7),
    };
  },

  /**
   * Does the driver put this process to sleep, and another one; are contents and addresses the same; what does a graph that was captured
   * before do afterwards; and what does it refuse: managed memory, memory that processes share, queued work? Milliseconds, and the bytes
   * that the device has free. A step of the driver may never return: after 100 s, what was answered until then is all.
   */
  async processSleep({ core, stream, cuda, large }) {
    const { processState, sleepProcess, wakeProcess } = await entry('serving');
    const { exportBuffer } = await entry('processes');
    const answer = { bytes: large };
    const timer = setTimeout(() => {
      console.log(JSON.stringify({ ...answer, ended: 'after 100 s' }));
      process.exit(0);
    }, 100_000);
    const attempt = async (options) => {
      const { elapsedMilliseconds } = await sleepProcess({ lockTimeoutMilliseconds: 5000, ...options });
      const state = await processState(options?.pid);
      const woken = await wakeProcess({ pid: options?.pid });
      return { state, sleep: rounded(elapsedMilliseconds), wake: rounded(woken.elapsedMilliseconds) };
    };
    const tried = (options) => attempt(options).catch(({ code, reason, message }) => `${reason ?? code}: ${message}`.slice(0, 300));

    const buffer = new core.DeviceBuffer(large, { resource: cuda, stream });
    const address = buffer.ptr;
    buffer.fill(5);
    const graph = stream.capture(() => core.set(address, 9, 1, 4096, stream)).instantiate();
    stream.synchronizeSync();
    const free = () => {
      const script = `const { Device } = await import(${JSON.stringify(`${dist}index.js`)}); console.log(Device.get().memoryInfo().freeBytes);`;
      return Number(spawnSync(process.execPath, ['--input-type=module', '--eval', script], { encoding: 'utf8' }).stdout);
    };
    answer.freeBefore = free();
    answer.slept = await sleepProcess().catch(({ reason, message }) => `${reason}: ${message}`.slice(0, 300));
    answer.state = await processState();
    answer.freeAsleep = free();
    answer.woken = await wakeProcess();
    answer.times = [];
    for (let i = 0; i < 3; i++) answer.times.push(await tried());
    answer.isRight = buffer.ptr === address && [0, large - 1].every((at) => byteOf(buffer, at) === 5);
    graph.launch(stream);
    answer.graph = byteOf(buffer, 4095) === 9 && byteOf(buffer, 4096) === 5;
    const hold = stream.hold();
    answer.whileBusy = await tried({ lockTimeoutMilliseconds: 200 });
    hold.release();
    const managed = new core.DeviceBuffer(core.MiB, { resource: new core.ManagedMemoryResource(), stream });
    managed.fill(3);
    answer.withManaged = await tried();
    answer.managedIsRight = byteOf(managed, 9) === 3;
    managed.dispose();

    const script = `
      const core = await import(${JSON.stringify(`${dist}index.js`)});
      const stream = new core.Stream({ nonBlocking: true });
      const buffer = new core.DeviceBuffer(${large}, { resource: new core.CudaMemoryResource(), stream });
      buffer.fill(7);
      stream.synchronizeSync();
      console.log('ready');
      process.stdin.once('data', () => {
        buffer.fill(8);
        console.log(new Set(buffer.toHostSync(new Uint8Array(4096))).size, buffer.toHostSync(new Uint8Array(1))[0]);
        process.exit(0);
      });`;
    const other = spawn(process.execPath, ['--input-type=module', '--eval', script], { stdio: ['pipe', 'pipe', 'inherit'] });
    let said = '';
    other.stdout.on('data', (text) => {
      said += text;
    });
    await once(other.stdout, 'data');
    answer.other = { before: free(), times: [await tried({ pid: other.pid }), await tried({ pid: other.pid })] };
    try {
      await sleepProcess({ pid: other.pid });
      answer.other.asleep = free();
      // Its call waits until it wakes.
      other.stdin.write('go on');
      await new Promise((resolve) => setTimeout(resolve, 300));
      answer.other.saidAsleep = said.trim();
      await wakeProcess({ pid: other.pid });
      await once(other, 'close');
      answer.other.said = said.trim();
    } catch ({ message }) {
      answer.other.error = message.slice(0, 300);
      other.kill('SIGKILL');
    }
    // The last, as a driver may refuse everything afterwards.
    exportBuffer(buffer);
    answer.withShared = await tried();
    clearTimeout(timer);
    return answer;
  },

  /** GiB a second at which buffers leave and come back; compare `copies`. */
  async spill({ core, stream, cuda, large }) {
    const { SpillableBuffer, SpillingResourceAdaptor } = await entry('serving');
    const count = 16;
    const bytes = large / count;
    const limit = new core.LimitingResourceAdaptor(new core.PoolMemoryResource(cuda, { initialBytes: large / 2 }), {
      limitBytes: large / 2,
    });
    const host = new core.PoolMemoryResource(new core.PinnedHostMemoryResource({ populateThreads: 16 }), { initialBytes: 2 * large });
    const resource = new SpillingResourceAdaptor(limit, host);
    const buffers = [];
    for (let i = 0; i < count; i++) {
      const buffer = new SpillableBuffer(bytes, { stream, resource });
      const pin = await buffer.pin(stream);
      core.set(pin.ptr, i + 1, 1, bytes, stream);
      pin.dispose();
      buffers.push(buffer);
    }
    let wrong = 0;
    const began = performance.now();
    for (let turn = 0; turn < 4; turn++) {
      for (const [i, buffer] of buffers.entries()) {
        const pin = await buffer.pin(stream);
        const read = new Uint8Array(64);
        core.copyToHostSync(read, pin.ptr + bytes - read.length, stream);
        if (!read.every((byte) => byte === i + 1)) wrong++;
        pin.dispose();
      }
    }
    stream.synchronizeSync();
    return { gibPerSecond: rounded((4 * large) / core.GiB / ((performance.now() - began) / 1000)), wrong };
  },

  /** May the driver read an array after `copyFromHost` has returned? Wrong bytes would mean that cistern does not wait where it must. */
  lateReads({ core, stream, cuda, large }) {
    const busy = cuda.allocate(large, stream);
    const answer = {};
    for (const bytes of [64, 4096, 65_536, 2 ** 20, 16 * 2 ** 20, 48 * 2 ** 20].filter((size) => size < large)) {
      const pointer = cuda.allocate(bytes, stream);
      let wrong = 0;
      let late = 0;
      for (let i = 0; i < 8; i++) {
        const source = new Uint8Array(bytes).fill(1);
        for (let k = 0; k < 4; k++) core.set(busy, k, 1, large, stream);
        core.copyFromHost(pointer, source, stream);
        if (!stream.query()) late++;
        source.fill(2);
        const read = new Uint8Array(bytes);
        core.copyToHostSync(read, pointer, stream);
        if (read.some((byte) => byte !== 1)) wrong++;
      }
      answer[bytes] = { wrong, returnedWhileBusy: late, of: 8 };
    }
    return answer;
  },

  /** How many streams stand still behind one that is held? */
  queues({ core, cuda }) {
    const held = new core.Stream({ nonBlocking: true });
    const others = times(48, () => new core.Stream({ nonBlocking: true }));
    const pointer = cuda.allocate(4096, held);
    const hold = held.hold();
    core.set(pointer, 1, 1, 64, held);
    for (const stream of others) core.set(pointer + 256, 1, 1, 64, stream);
    const until = performance.now() + 500;
    while (performance.now() < until && others.some((stream) => !stream.query()));
    const behind = others.filter((stream) => !stream.query()).length;
    hold.release();
    held.synchronizeSync();
    return { connections: process.env.CUDA_DEVICE_MAX_CONNECTIONS ?? 'default', standStill: behind, of: others.length };
  },

  /** Milliseconds by which `await stream.synchronize()` comes later than `synchronizeSync()`. */
  async completions({ core, stream, cuda, large }) {
    const pointer = cuda.allocate(large, stream);
    const answer = {};
    for (const repeats of [1, 4, 16]) {
      const work = () => {
        for (let i = 0; i < repeats; i++) core.set(pointer, i, 1, large, stream);
      };
      const blocking = [];
      const awaited = [];
      for (let i = 0; i < 15; i++) {
        blocking.push(
          milliseconds(() => {
            work();
            stream.synchronizeSync();
          }),
        );
        const began = performance.now();
        work();
        await stream.synchronize();
        awaited.push(performance.now() - began);
      }
      answer[repeats] = { blocking: rounded(median(blocking)), awaited: rounded(median(awaited)) };
    }
    return answer;
  },

  /** Can another process read and write a buffer; and does trimming such a pool have an effect? NVIDIA's guide says that it has none. */
  async processes({ core, stream, cuda }) {
    const { exportBuffer, importersDone } = await entry('processes');
    const answer = {};
    for (const [name, resource] of [
      ['cuda', cuda],
      ['cuda-async', new core.CudaAsyncMemoryResource({ exportable: true })],
    ]) {
      try {
        const buffer = new core.DeviceBuffer(new Uint8Array(65_536).fill(9), { resource, stream });
        const handle = Buffer.from(exportBuffer(buffer)).toString('base64');
        const script = `
          const core = await import(${JSON.stringify(`${dist}index.js`)});
          const { openBuffer } = await import(${JSON.stringify(`${dist}processes/index.js`)});
          const stream = new core.Stream({ nonBlocking: true });
          const buffer = openBuffer(Buffer.from('${handle}', 'base64'), { stream });
          console.log(JSON.stringify([...new Set(buffer.toHostSync())]));
          core.set(buffer.ptr, 5, 1, 16, stream);
          stream.synchronizeSync();
          buffer.dispose();`;
        const child = spawn(process.execPath, ['--input-type=module', '--eval', script], { stdio: ['ignore', 'pipe', 'pipe'] });
        let text = '';
        for (const output of [child.stdout, child.stderr])
          output.on('data', (part) => {
            text += part;
          });
        await once(child, 'close');
        await importersDone(buffer);
        answer[name] = { otherRead: text.trim().slice(0, 300), otherWrote: buffer.toHostSync()[0] };
        buffer.dispose();
        stream.synchronizeSync();
        if (name !== 'cuda-async') continue;
        const before = resource.usage();
        resource.trim(stream);
        answer[name].trim = { before, after: resource.usage() };
      } catch (error) {
        answer[name] = { ...answer[name], error: `${error.code}: ${error.message}`.slice(0, 300) };
      }
    }
    return answer;
  },

  /**
   * May events and copies of the primary context be used with a stream of a green context? cistern refuses such streams, since an event of one context
   * cannot be recorded on a stream of another one; NVIDIA now says that green contexts are treated as if they were the primary one. Answers are CUDA's numbers.
   */
  async greenContexts({ core, device, stream, cuda }) {
    if (core.Device.driverVersion() < 12_050) return { skipped: 'green contexts need CUDA 12.5' };
    const { default: koffi } = await import('koffi');
    const find = koffi
      .load('libcuda.so.1')
      .func('int cuGetProcAddress_v2(const char *name, _Out_ void **function, int version, uint64_t flags, _Out_ int *reason)');
    const known = new Map();
    const call = (name, version, parameters, ...values) => {
      const address = [null];
      if (find(name, address, version, 0, [0]) !== 0 || address[0] === null) return `no ${name}`;
      if (!known.has(name)) known.set(name, koffi.decode(address[0], koffi.proto(`int ${name}${version}(${parameters})`)));
      return known.get(name)(...values);
    };
    const [primary, resource, description, green, other, event, own, context] = Array.from({ length: 8 }, () => [null]);
    resource[0] = Buffer.alloc(512);
    const made = {
      primary: call('cuDevicePrimaryCtxRetain', 7000, '_Out_ void **context, int device', primary, device.index),
      current: call('cuCtxSetCurrent', 4000, 'void *context', primary[0]),
      resource: call('cuDeviceGetDevResource', 12_040, 'int device, void *resource, int type', device.index, resource[0], 1),
      description: call(
        'cuDevResourceGenerateDesc',
        12_040,
        '_Out_ void **description, void *r, unsigned int n',
        description,
        resource[0],
        1,
      ),
      green: call(
        'cuGreenCtxCreate',
        12_040,
        '_Out_ void **green, void *d, int device, unsigned int flags',
        green,
        description[0],
        device.index,
        1,
      ),
      stream: call(
        'cuGreenCtxStreamCreate',
        12_050,
        '_Out_ void **stream, void *green, unsigned int flags, int priority',
        other,
        green[0],
        1,
        0,
      ),
    };
    if (Object.values(made).some((status) => status !== 0)) return { skipped: `no green context: ${JSON.stringify(made)}` };
    const pointer = cuda.allocate(4096, stream);
    const record = (which) => call('cuEventRecord', 2000, 'void *event, void *stream', which, other[0]);
    const wait = (by, which) => call('cuStreamWaitEvent', 3020, 'uintptr_t stream, void *event, unsigned int flags', by, which, 0);
    return {
      withPrimaryCurrent: {
        create: call('cuEventCreate', 2000, '_Out_ void **event, unsigned int flags', event, 2),
        record: record(event[0]),
        primaryWaits: wait(stream.nativeHandle, event[0]),
        greenWaits: wait(Number(koffi.address(other[0])), event[0]),
        set: call('cuMemsetD8Async', 3020, 'uintptr_t p, uint8_t value, size_t n, void *stream', pointer, 1, 4096, other[0]),
        getContext: call('cuStreamGetCtx', 9020, 'void *stream, _Out_ void **context', other[0], [null]),
        getId: call('cuStreamGetId', 12_000, 'void *stream, _Out_ uint64_t *id', other[0], [0]),
      },
      withGreenCurrent: {
        context: call('cuCtxFromGreenCtx', 12_040, '_Out_ void **context, void *green', context, green[0]),
        current: call('cuCtxSetCurrent', 4000, 'void *context', context[0]),
        create: call('cuEventCreate', 2000, '_Out_ void **event, unsigned int flags', own, 2),
        record: record(own[0]),
        primaryWaits: wait(stream.nativeHandle, own[0]),
        recordOfPrimary: record(event[0]),
        synchronize: call('cuStreamSynchronize', 2000, 'void *stream', other[0]),
      },
    };
  },

  /** Does compute-sanitizer find a kernel that writes past the end of a block of a pool, if it is told about the pool, and only then? */
  sanitizer({ device }) {
    const script = `
      const core = await import(${JSON.stringify(`${dist}index.js`)});
      const { announceAllocations, announcePools } = await import(${JSON.stringify(`${dist}checking/index.js`)});
      core.Device.get().synchronizeSync();
      const { Kernel } = await import(${JSON.stringify(new URL('../../examples/kernels/cuda.js', import.meta.url).href)});
      const { readFileSync } = await import('node:fs');
      const ptx = readFileSync(${JSON.stringify(fileURLToPath(new URL('../../examples/addons/step.ptx', import.meta.url)))}, 'utf8');
      const isAnnounced = process.argv[1] === 'announced';
      const stream = new core.Stream({ nonBlocking: true });
      const cuda = new core.CudaMemoryResource();
      const pool = new core.PoolMemoryResource(isAnnounced ? announcePools(cuda) : cuda, { initialBytes: core.MiB });
      const resource = isAnnounced ? announceAllocations(pool) : pool;
      const [first, second] = [resource.allocate(1024, stream), resource.allocate(1024, stream)];
      new Kernel(0, ptx, 'fill', ['uint64_t', 'uint64_t', 'uint32_t']).launch(stream, 2, 256, Math.min(first, second), 257, 7);
      stream.synchronizeSync();`;
    const options = ['--tool', 'memcheck', '--nvtx', 'yes', '--force-blocking-launches', 'yes', process.execPath, '--input-type=module'];
    const run = (...args) => {
      const { error, stdout, stderr } = spawnSync('compute-sanitizer', [...options, '--eval', script, ...args], { encoding: 'utf8' });
      if (error !== undefined) return undefined;
      return (stdout + stderr).slice(-1000);
    };
    const told = run('announced');
    if (told === undefined) return { skipped: 'compute-sanitizer is not installed' };
    const answer = { device: device.name, told, untold: run() };
    return /ERROR SUMMARY: [1-9]/.test(told) ? answer : { ...answer, failed: 'it found nothing' };
  },

  /** Nanoseconds of an allocation and its free. */
  pairs({ core, stream, cuda }) {
    const each = (resource) => {
      const pair = () => resource.deallocate(resource.allocate(core.MiB, stream), core.MiB, stream);
      times(3000, pair);
      stream.synchronizeSync();
      const samples = times(5, () => {
        const sample = milliseconds(() => times(20_000, pair));
        stream.synchronizeSync();
        return (sample / 20_000) * 1e6;
      });
      return Math.round(Math.min(...samples));
    };
    const answer = { 'cuda-async': each(new core.CudaAsyncMemoryResource()) };
    for (const deallocationEvents of ['eager', 'deferred', 'off'])
      answer[`pool ${deallocationEvents}`] = each(new core.PoolMemoryResource(cuda, { initialBytes: 64 * core.MiB, deallocationEvents }));
    return answer;
  },

  /**
   * Does a descriptor keep memory whose process was killed, at the same addresses, and read-only? What does it cost: milliseconds to make and
   * commit a region, and to have it in place again.
   */
  async lasting({ large, device }) {
    const folder = mkdtempSync(join(tmpdir(), 'cistern-probe-'));
    const socket = join(folder, 'keep.sock');
    const keep = spawn(process.execPath, [fileURLToPath(`${dist}tools/cli/main.js`), 'keep', '--socket', socket], { stdio: 'pipe' });
    await once(keep.stderr, 'data');
    const program = `
      const { DeviceBuffer, Device, Stream } = await import(${JSON.stringify(`${dist}index.js`)});
      const { LastingMemoryResource } = await import(${JSON.stringify(`${dist}lasting/index.js`)});
      Device.get().synchronizeSync();
      const began = performance.now();
      const weights = new LastingMemoryResource({ region: 'probe', bytes: ${large}, layout: 'a', socket: ${JSON.stringify(socket)} });
      const buffer = new DeviceBuffer(${large}, { resource: weights, stream: new Stream() });
      const wrote = weights.isWriting;
      if (wrote) { buffer.fill(5); weights.commit(); }
      const milliseconds = performance.now() - began;
      const [first] = buffer.toHostSync(new Uint8Array(1));
      const [last] = buffer.toHostSync(new Uint8Array(1), { byteOffset: ${large} - 1 });
      let refused = 'nothing';
      try { buffer.fill(6); } catch (error) { refused = error.code; }
      console.log(JSON.stringify({ wrote, milliseconds, address: weights.address, first, last, refused }));
      process.kill(process.pid, 'SIGKILL');
    `;
    const run = () => {
      const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', program], { encoding: 'utf8' });
      return stdout === '' ? stderr.slice(0, 500) : JSON.parse(stdout);
    };
    const before = device.memoryInfo().freeBytes;
    const [written, again, third] = [run(), run(), run()];
    const heldBytes = before - device.memoryInfo().freeBytes;
    keep.kill('SIGKILL');
    await once(keep, 'exit');
    rmSync(folder, { recursive: true });
    return { bytes: large, written, again, third, heldBytes, heldAfterwards: before - device.memoryInfo().freeBytes };
  },

  /** Is memory that really runs out told as such, and is there a device after it? */
  outOfMemory({ core, stream, cuda, device }) {
    const pointers = [];
    const bytes = Math.max(core.MiB, Math.floor(device.memoryInfo().totalBytes / 8));
    let message = 'nothing';
    try {
      while (pointers.length < 16) pointers.push(cuda.allocate(bytes, stream));
    } catch (error) {
      message = `${error.code}: ${error.message}`.slice(0, 500);
    }
    for (const pointer of pointers) cuda.deallocate(pointer, bytes, stream);
    cuda.deallocate(cuda.allocate(bytes, stream), bytes, stream);
    return { allocatedBefore: pointers.length, message };
  },
};

const [name] = process.argv.slice(2);
if (name === '--list') {
  console.log(JSON.stringify(Object.keys(probes)));
} else {
  const core = await entry('');
  const device = core.Device.get();
  const stream = new core.Stream({ nonBlocking: true });
  const large = device.memoryInfo().freeBytes > 8 * core.GiB ? 2 * core.GiB : 64 * core.MiB;
  console.log(JSON.stringify(await probes[name]({ core, device, stream, cuda: new core.CudaMemoryResource(), large })));
  process.exit(0);
}

/** The built entry `cistern/NAME`, or `cistern`. */
function entry(folder) {
  return import(new URL(folder === '' ? 'index.js' : `${folder}/index.js`, dist).href);
}

/** A byte of a buffer, as the device has it. */
function byteOf(buffer, byteOffset) {
  return buffer.toHostSync(new Uint8Array(1), { byteOffset })[0];
}

function times(count, work) {
  return Array.from({ length: count }, work);
}

function milliseconds(work) {
  const began = performance.now();
  work();
  return rounded(performance.now() - began);
}

function median(values) {
  return [...values].sort((a, b) => a - b)[values.length >> 1];
}

function rounded(value) {
  return Math.round(value * 1000) / 1000;
}
