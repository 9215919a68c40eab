/**
 * A driver that lacks one function of the table, for each of them in turn: either it is refused in one
 * sentence that names the function, or what needs the function fails with an error of cistern's.
 */

import { describe, expect, test } from 'vitest';
import { driverFunctionNames } from '../../src/tools/testing/index.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { runModule, wholePackage } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';
import { runCistern } from '../tools/cli/run-cistern.js';

/** Found before the others, or without being asked for by name. */
const neverAsked = ['cuDriverGetVersion'];

/** Uses everything once. Prints what was refused with an error of cistern's. */
const program = `
  import * as c from '${wholePackage}';
  try {
    c.selectBackend('cuda');
  } catch (error) {
    console.log('refused:', error.code, error.message);
    process.exit();
  }
  const failed = [];
  const attempt = (what, use) => {
    try {
      return use();
    } catch (error) {
      if (!(error instanceof c.CisternError)) throw error;
      failed.push(what);
    }
  };
  const device = c.Device.get();
  const stream = new c.Stream({ nonBlocking: true });
  const other = new c.Stream({ nonBlocking: true });
  for (const what of ['name', 'uuid', 'totalBytes']) attempt(what, () => device[what]);
  attempt('priorities', () => [device.streamPriorityRange(), stream.priority]);
  attempt('peers', () => device.enablePeerAccess(c.Device.get(1)));
  attempt('foreign', () => c.Stream.fromHandle(stream.nativeHandle).dispose());
  const kinds = { cuda: 'CudaMemoryResource', managed: 'ManagedMemoryResource', pinned: 'PinnedHostMemoryResource',
    virtual: 'VirtualMemoryResource', async: 'CudaAsyncMemoryResource', managedAsync: 'ManagedAsyncMemoryResource',
    pinnedAsync: 'PinnedAsyncMemoryResource' };
  const useOnce = (resource) => {
    const pointer = resource.allocate(4096, stream);
    c.set(pointer, 1, 1, 4096, stream);
    resource.deallocate(pointer, 4096, stream);
    stream.synchronizeSync();
    resource.dispose();
  };
  for (const [what, kind] of Object.entries(kinds)) {
    attempt(what, () => useOnce(new c[kind]()));
  }
  // The driver clears it, if it has no function to register it.
  attempt('large', () => {
    const resource = new c.PinnedHostMemoryResource();
    resource.deallocate(resource.allocate(16 * c.MiB, stream), 16 * c.MiB, stream);
  });
  attempt('populated', () => useOnce(new c.PinnedHostMemoryResource({ populateThreads: 2 })));
  attempt('current pool', () => new c.CudaAsyncMemoryResource({ pool: 'current' }).dispose());
  attempt('making a pool current', () => {
    const own = new c.CudaAsyncMemoryResource();
    own.makeCurrent();
    own.dispose();
  });
  attempt('default pool', () => new c.CudaAsyncMemoryResource({ pool: 'default' }).dispose());
  attempt('exportable pool', () => new c.CudaAsyncMemoryResource({ exportable: true }).dispose());
  const plain = new c.CudaMemoryResource();
  const pool = new c.PoolMemoryResource(plain);
  attempt('buffers', () => {
    for (const on of [stream, other]) {
      const buffer = new c.DeviceBuffer(new Uint8Array(1000), { resource: pool, stream: on });
      buffer.toHostSync();
      buffer.dispose();
    }
  });
  attempt('words', () => {
    const pointer = plain.allocate(4096, stream);
    try {
      c.set(pointer, 1, 4, 1024, stream);
    } finally {
      plain.deallocate(pointer, 4096, stream);
    }
  });
  attempt('export', () => {
    const buffer = new c.DeviceBuffer(1000, { resource: plain, stream });
    c.exportBuffer(buffer);
    buffer.dispose();
  });
  attempt('times', () => {
    const [start, end] = [new c.Event({ timing: true }), new c.Event({ timing: true })];
    for (const event of [start, end]) event.record(stream);
    end.synchronizeSync();
    end.elapsedMilliseconds(start);
  });
  attempt('holds', () => {
    const hold = stream.hold();
    hold.release();
    stream.synchronizeSync();
  });
  attempt('host functions', () => {
    stream.launchHostFunction(() => {});
    stream.synchronizeSync();
  });
  attempt('graphs', () => {
    const exec = stream.capture(() => {}).instantiate();
    exec.launch(stream);
    stream.synchronizeSync();
    exec.dispose();
  });
  attempt('child graphs', () => {
    const child = stream.capture(() => {});
    stream.capture(() => stream.addChildGraph(child)).dispose();
  });
  try {
    await c.processState();
  } catch (error) {
    if (!(error instanceof c.CisternError)) throw error;
    failed.push('sleep');
  }
  await stream.synchronize();
  console.log('failed:', failed.join());
`;

/** What fails without a function. Of those not named here, nothing does, or the driver is refused. */
const costs: readonly (readonly [RegExp, string])[] = [
  [
    /^cuMemPool(Create|Destroy|TrimTo|.etAttribute)$|^cuMem(AllocFromPool|Free)Async$/,
    'async,managedAsync,pinnedAsync,current pool,making a pool current,default pool,exportable pool',
  ],
  [/^cuDeviceGetDefaultMemPool$/, 'default pool'],
  [/^cuCheckpointProcess.*$/, 'sleep'],
  [/^cuDevice[GS]etMemPool$/, 'current pool,making a pool current'],
  [/^cuMem(GetAllocationGranularity|Address(Reserve|Free)|Create|Release|Map|Unmap|SetAccess)$/, 'virtual'],
  [/^cuMemAllocManaged$/, 'managed'],
  [/^cuMemHost(Unr|R)egister$/, 'populated'],
  [/^cu(DeviceCanAccessPeer|Ctx(En|Dis)ablePeerAccess|MemPoolSetAccess)$/, 'peers,pinnedAsync'],
  [/^cuIpc(.*MemHandle|.*EventHandle)$/, 'export'],
  [/^cu(CtxGetStreamPriorityRange|StreamGetPriority)$/, 'priorities'],
  [/^cuEventElapsedTime$/, 'times'],
  [/^cuMemsetD32Async$/, 'words'],
  [/^cu(StreamUpdateCaptureDependencies|GraphAddChildGraphNode)$/, 'child graphs'],
  [/^cu(Stream((Begin|End)Capture|GetCaptureInfo)|Graph.*|UserObject.*)$/, 'graphs,child graphs'],
];
// What needs shareable handles needs a `cistern keep`, too: test/lasting.
const costless =
  /^cu(MemAdvise|Mem(ExportTo|ImportFrom)ShareableHandle|MemPrefetchAsync|MemRangeGetAttribute|Memcpy(Peer|Batch)Async|MemPool(Ex|Im)port.*|Stream(WaitValue32|GetCtx|IsCapturing)|GetErrorString|ThreadExchangeStreamCaptureMode|DevicePrimaryCtxRelease)$/;

function needStrictDriver(): void {
  if (process.env['STRICT_DRIVER_CONTROL'] === undefined) skipTest('only the strict driver can be made to lack a function');
}

const lacking = (name: string) => ({ ...deviceUnderTest, STRICT_DRIVER_MISSING: name, STRICT_DRIVER_LOG: '/dev/null' });

/** What fails, in the order of the program. */
const failuresIn = (stdout: string) => /^failed: (.*)\n$/.exec(stdout)?.[1]?.split(',').filter(Boolean) ?? [];

let always: readonly string[] | undefined;
/** What fails in these settings of the driver anyway. */
function alwaysFailing(): readonly string[] {
  always ??= failuresIn(runModule(program, lacking('')).stdout);
  return always;
}

describe('a driver without', () => {
  test.each(driverFunctionNames().filter((name) => !neverAsked.includes(name)))('%s is refused, or lacks what needs it', (name) => {
    needStrictDriver();
    const { status, signal, stdout, stderr } = runModule(program, lacking(name));
    const cost = costs.find(([names]) => names.test(name))?.[1] ?? (costless.test(name) ? '' : undefined);
    const isRefused = cost === undefined;
    const expected = isRefused ? `^refused: ERR_CISTERN_DEVICE_UNAVAILABLE .* has no ${name}\n$` : '^failed: .*\n$';
    expect({ status, signal, stdout, stderr }).toEqual({
      status: 0,
      signal: null,
      stdout: expect.stringMatching(new RegExp(expected)),
      stderr: '',
    });
    const failures = isRefused ? [] : [...alwaysFailing(), ...cost.split(',').filter(Boolean)];
    expect(new Set(failuresIn(stdout))).toEqual(new Set(failures));
  });

  test('some functions is described by the doctor, with what each of them costs', async () => {
    needStrictDriver();
    const { code, stdout } = await runCistern(['doctor'], undefined, lacking('cuMemMap,cuEventElapsedTime'));
    expect(code).toBe(0);
    expect(stdout).toMatch(/^missing: +cuMemMap: no VirtualMemoryResource$/m);
    expect(stdout).toMatch(/^missing: +cuEventElapsedTime: no times between events: Event.elapsedMilliseconds$/m);
  });
});
