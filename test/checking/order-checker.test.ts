import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  checkOrder,
  formatOrderViolation,
  type OrderChecker,
  type OrderViolation,
  type OrderViolationKind,
} from '../../src/checking/index.js';
import { mailbox, native } from '../../src/driver/native.js';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  copy,
  copyFromHost,
  copyToHost,
  copyToHostSync,
  Device,
  declareAllocation,
  declareFree,
  Event,
  isCheckingOrder,
  ManagedMemoryResource,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
} from '../../src/index.js';
import { runModule } from '../support/run-module.js';
import { policies } from '../support/stream-order.js';

// Here each test starts and ends the check, even if the environment requests one.
vi.stubEnv('CISTERN_CHECK_ORDER', '');

const bytes = 4096;
let checker: OrderChecker;
let resource: CudaMemoryResource;
let a: Stream;
let b: Stream;
let pointer: number;

beforeEach(() => {
  checker = checkOrder();
  resource = new CudaMemoryResource();
  a = new Stream({ nonBlocking: true });
  b = new Stream({ nonBlocking: true });
  pointer = resource.allocate(bytes, a);
});

afterEach(() => {
  resource.deallocate(pointer, bytes, a);
  a.dispose();
  b.dispose();
  resource.dispose();
  checker.dispose();
  expect(isCheckingOrder()).toBe(false);
});

/** Makes `waiting` wait for everything queued on `recorded`. */
function wait(waiting: Stream, recorded: Stream): void {
  using event = new Event();
  event.record(recorded);
  waiting.wait(event);
}

/** The kinds of the violations since the last call. */
function kinds(): OrderViolationKind[] {
  const result = checker.violations.map(({ kind }) => kind);
  checker.clear();
  return result;
}

/** The violations of two writes on two streams, with something done in between. */
async function between(body: () => unknown, first = a, second = b): Promise<OrderViolationKind[]> {
  Device.get().synchronizeSync();
  first.touch(pointer, bytes, 'write');
  await body();
  second.touch(pointer, bytes, 'write');
  return kinds();
}

describe('a violation', () => {
  test('names both sides, their origins, and the missing wait', () => {
    set(pointer, 1, 1, 1000, a);
    expect(checker.violations).toEqual([]);
    copyFromHost(pointer + 500, new Uint8Array(1000), b);
    expect(checker.violations).toHaveLength(1);
    const [violation] = checker.violations as [OrderViolation];
    expect(violation).toMatchObject({
      kind: 'unordered',
      pointer: pointer + 500,
      bytes: 500,
      earlier: { operation: 'set', access: 'write', streamId: a.id, pointer, bytes: 1000 },
      later: { operation: 'copy', access: 'write', streamId: b.id, pointer: pointer + 500, bytes: 1000 },
      missing: `stream ${b.id} must wait for an event recorded on stream ${a.id} after its write`,
    });
    expect(violation.later.number).toBe(violation.earlier.number + 1);
    for (const side of [violation.earlier, violation.later]) {
      expect(side.stack).toContain('order-checker.test.ts');
      expect(side.stack).not.toContain('order-checker.ts');
    }
    expect(violation.earlier.stack).not.toBe(violation.later.stack);
  });

  test('has a readable text', () => {
    set(pointer, 1, 1, 1000, a);
    b.touch(pointer, 8, 'read');
    const [violation] = checker.violations as [OrderViolation];
    const address = `0x${pointer.toString(16)}`;
    const lines = formatOrderViolation(violation).split('\n');
    expect(lines[0]).toBe(`two streams use memory without order: 8 bytes from ${address}`);
    expect(lines[1]).toMatch(new RegExp(`^ {2}later: {3}touch \\(read\\) of 8 bytes from ${address} on stream ${b.id}, operation \\d+$`));
    expect(lines[2]).toMatch(/^ {4}at /);
    expect(lines.at(-1)).toBe(`  missing: stream ${b.id} must wait for an event recorded on stream ${a.id} after its write`);
    expect(lines.filter((line) => line.startsWith('  earlier: set (write)'))).toHaveLength(1);
  });

  test('reaches every checker, during the call that caused it, and a diagnostics channel', () => {
    const seen: string[] = [];
    const onMessage = (message: unknown) => seen.push(`channel ${(message as OrderViolation).kind}`);
    subscribe('cistern:order', onMessage);
    using second = checkOrder({ stacks: false, onViolation: ({ kind }) => seen.push(kind) });
    a.touch(pointer, bytes, 'write');
    b.touch(pointer, bytes, 'write');
    unsubscribe('cistern:order', onMessage);
    expect(seen).toEqual(['unordered', 'channel unordered']);
    expect([second.violations.length, checker.violations.length]).toEqual([1, 1]);
    second.dispose();
    second.dispose();
    a.touch(pointer, bytes, 'write');
    expect([second.violations.length, checker.violations.length]).toEqual([1, 2]);
  });

  test('does not change the results of the call that caused it', () => {
    using async = new CudaAsyncMemoryResource();
    using event = new Event();
    const onViolation = vi.fn(() => event.query());
    using second = checkOrder({ onViolation });
    const pooled = async.allocate(bytes, a);
    async.deallocate(pooled, bytes, b);
    expect(onViolation).toHaveBeenCalledOnce();
    expect(second.violations[0]?.kind).toBe('use-before-allocation');
    mailbox[5] = 7;
    native().set(pointer, 0, 1, 1, a.handle);
    native().set(pointer, 0, 1, 1, b.handle);
    expect([mailbox[0], mailbox[5]]).toEqual([0, 7]);
    expect(onViolation).toHaveBeenCalledTimes(2);
  });

  test('whose callback throws causes an uncaught exception, and the call goes on', () => {
    const end = runModule(
      `
      import { CudaMemoryResource, Stream } from 'cistern';
      import { checkOrder } from 'cistern/checking';
      process.on('uncaughtException', (error) => console.log('caught', error.message));
      using checker = checkOrder({ onViolation: () => { throw new Error('seen'); } });
      const [a, b] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
      const pointer = new CudaMemoryResource().allocate(64, a);
      for (const stream of [a, b]) stream.touch(pointer, 64, 'write');
      console.log(checker.violations.length);
    `.replace('using checker', 'const checker'),
    );
    expect(end).toMatchObject({ status: 0, stdout: '1\ncaught seen\n' });
  });

  test('is kept in a bounded list', () => {
    for (let i = 0; i < 1005; i++) (i % 2 === 0 ? a : b).touch(pointer, 8, 'write');
    expect([checker.violations.length, checker.droppedViolations]).toEqual([1000, 4]);
    checker.clear();
    expect([checker.violations.length, checker.droppedViolations]).toEqual([0, 0]);
  });

  test('has no stacks if none are wanted, and loses those of old operations', () => {
    a.touch(pointer, 8, 'write');
    for (let i = 0; i < 5000; i++) a.touch(pointer + 8, 8, 'write');
    b.touch(pointer, 8, 'write');
    expect(checker.violations[0]?.earlier.stack).toBeUndefined();
    expect(checker.violations[0]?.later.stack).toBeDefined();
    checker.dispose();
    checker = checkOrder({ stacks: false });
    const fresh = resource.allocate(8, a);
    a.touch(fresh, 8, 'write');
    b.touch(fresh, 8, 'write');
    expect(checker.violations[0]).toMatchObject({ earlier: { stack: undefined }, later: { stack: undefined } });
    resource.deallocate(fresh, 8, a);
  });
});

describe('uses of two streams are in order', () => {
  const nothing = () => {};
  const waits: Record<string, [body: () => unknown, without: () => unknown]> = {
    'through an event': [() => wait(b, a), () => wait(a, b)],
    'through a third stream': [
      () => {
        using c = new Stream({ nonBlocking: true });
        wait(c, a);
        wait(b, c);
      },
      () => {
        using c = new Stream({ nonBlocking: true });
        wait(c, a);
      },
    ],
    'after the stream was synchronized': [() => a.synchronizeSync(), () => b.synchronizeSync()],
    'after the promise of a stream': [() => a.synchronize(), () => b.synchronize()],
    'after the device was synchronized': [() => Device.get().synchronizeSync(), nothing],
    'after the promise of the device': [() => Device.get().synchronize(), nothing],
    'after a query that finds everything run': [
      () => {
        while (!a.query());
      },
      () => expect(b.query()).toBe(true),
    ],
    'after an event was synchronized': [
      () => {
        using event = new Event();
        event.record(a);
        event.synchronizeSync();
      },
      () => {
        using event = new Event();
        event.synchronizeSync();
      },
    ],
    'after the promise of an event, recorded again meanwhile': [
      async () => {
        using event = new Event();
        using hold = a.hold();
        event.record(a);
        const promise = event.synchronize();
        event.record(b);
        hold.release();
        await promise;
      },
      async () => {
        using event = new Event();
        event.record(b);
        await event.synchronize();
      },
    ],
    'after a query of an event': [
      () => {
        using event = new Event();
        event.record(a);
        while (!event.query());
      },
      nothing,
    ],
    'after the free of plain memory': [() => resource.deallocate(resource.allocate(64, a), 64, a), () => pin(resource.allocate(64, a))],
    'after a copy to the host': [() => copyToHostSync(new Uint8Array(8), pointer, a), nothing],
    'after the promise of a copy to the host': [
      () => copyToHost(pointer, 8, a),
      async () => {
        const other = resource.allocate(8, a);
        pin(other);
        await copyToHost(other, 8, b);
      },
    ],
  };
  const pinned: number[] = [];
  const pin = (address: number) => pinned.push(address);
  afterEach(() => {
    for (const address of pinned.splice(0)) resource.deallocate(address, address === 0 ? 0 : (sizes.get(address) ?? 64), a);
  });
  const sizes = new Map<number, number>();

  test.each(Object.keys(waits))('%s', async (name) => {
    const [body] = waits[name] as (typeof waits)[string];
    expect(await between(body)).toEqual([]);
  });

  test.each(Object.keys(waits))('not without it: %s', async (name) => {
    const [, without] = waits[name] as (typeof waits)[string];
    const allocate = resource.allocate.bind(resource);
    vi.spyOn(resource, 'allocate').mockImplementation((size, ...rest) => {
      const address = allocate(size, ...rest);
      sizes.set(address, size);
      return address;
    });
    expect(await between(without)).toEqual(['unordered']);
  });

  test('inside a host function, but not merely because its stream has reached it', async () => {
    a.touch(pointer, bytes, 'write');
    const seen: OrderViolationKind[][] = [];
    using hold = a.hold();
    a.launchHostFunction(() => {
      b.touch(pointer, 64, 'write');
      seen.push(kinds());
    });
    a.touch(pointer + 64, 64, 'write');
    hold.release();
    await a.synchronize();
    expect(seen).toEqual([[]]);
    b.touch(pointer + 64, 64, 'write');
    expect(kinds()).toEqual([]);
    a.touch(pointer, 8, 'write');
    expect(kinds()).toEqual(['unordered']);
    using second = a.hold();
    b.touch(pointer, 8, 'write');
    expect(kinds()).toEqual(['unordered']);
    second.release();
  });

  test('not because of a promise that is not yet resolved', async () => {
    a.touch(pointer, bytes, 'write');
    using hold = a.hold();
    const promise = a.synchronize();
    hold.release();
    const end = Date.now() + 50;
    while (Date.now() < end);
    b.touch(pointer, bytes, 'write');
    expect(kinds()).toEqual(['unordered']);
    await promise;
    b.touch(pointer, bytes, 'write');
    expect(kinds()).toEqual([]);
  });

  test('not if the awaited event was recorded before the wait that it should pass on', async () => {
    using c = new Stream({ nonBlocking: true });
    using event = new Event();
    const body = () => {
      event.record(c);
      wait(c, a);
      b.wait(event);
    };
    expect(await between(body)).toEqual(['unordered']);
  });

  test('if one is the legacy default stream and the other one is blocking', async () => {
    using blocking = new Stream();
    using other = new Stream();
    const legacy = Stream.legacyDefault();
    expect(await between(nothing, blocking, legacy)).toEqual([]);
    expect(await between(nothing, legacy, blocking)).toEqual([]);
    expect(await between(nothing, Stream.perThreadDefault(), legacy)).toEqual([]);
    expect(await between(() => legacy.touch(pointer, 0, 'read'), blocking, other)).toEqual(['unordered']);
    expect(await between(() => set(pointer, 0, 1, 8, legacy), blocking, other)).toEqual([]);
    expect(await between(nothing, a, legacy)).toEqual(['unordered']);
    expect(await between(nothing, legacy, a)).toEqual(['unordered']);
  });
});

describe('uses are checked against each other', () => {
  test('as reads and writes, by range', () => {
    a.touch(pointer, 100, 'read');
    b.touch(pointer, 100, 'read');
    a.touch(pointer + 100, 100, 'write');
    b.touch(pointer + 200, 100, 'write');
    expect(kinds()).toEqual([]);
    b.touch(pointer, 100, 'write');
    expect(kinds()).toEqual(['unordered']);
    copy(pointer + 1000, pointer + 100, 100, b);
    expect(kinds()).toEqual(['unordered']);
  });

  test('if a host function stands in for a copy between host memory while a stream is held', async () => {
    using pinned = new PinnedHostMemoryResource();
    const host = pinned.allocate(256, a);
    using hold = a.hold();
    copy(host, host + 128, 64, a);
    b.touch(host, 8, 'read');
    b.touch(host + 128, 8, 'write');
    b.touch(host + 128, 8, 'read');
    hold.release();
    expect(kinds()).toEqual(['unordered', 'unordered']);
    pinned.deallocate(host, 256, a);
  });

  test('in managed memory, but not in cistern’s staging memory', async () => {
    using managed = new ManagedMemoryResource();
    const address = managed.allocate(64, a);
    a.touch(address, 64, 'write');
    b.touch(address, 64, 'read');
    expect(kinds()).toEqual(['unordered']);
    wait(a, b);
    managed.deallocate(address, 64, a);
    const other = resource.allocate(64, a);
    for (let i = 0; i < 8; i++) {
      using hold = a.hold();
      const results = [copyToHost(pointer, 64, a), copyToHost(other, 64, b)];
      copyFromHost(pointer, new Uint8Array(64), a);
      copyFromHost(other, new Uint8Array(64), b);
      hold.release();
      await Promise.all(results);
    }
    expect(kinds()).toEqual([]);
    resource.deallocate(other, 64, a);
  });

  test('with validated arguments while anybody checks', () => {
    expect(() => a.touch(-1, 8, 'read')).toThrow(RangeError);
    expect(() => a.touch(pointer, 0.5, 'read')).toThrow(RangeError);
    expect(() => a.touch(pointer, 8, 'readwrite' as 'read')).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
    expect(() => checkOrder({ onViolation: 1 as unknown as () => void })).toThrow(TypeError);
    expect(() => checkOrder(null as unknown as object)).toThrow(TypeError);
    const gone = new Stream();
    gone.dispose();
    expect(() => gone.touch(pointer, 8, 'read')).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(() => declareFree(pointer, 8, gone)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(() => declareAllocation(pointer, -8, a)).toThrow(RangeError);
  });
});

describe('memory has a lifetime', () => {
  test('from its allocation in stream order, in a pool of the driver, to its free', () => {
    using async = new CudaAsyncMemoryResource();
    const early = async.allocate(bytes, a);
    b.touch(early, 8, 'read');
    expect(checker.violations[0]).toMatchObject({ earlier: { operation: 'allocate', access: undefined, streamId: a.id } });
    expect(kinds()).toEqual(['use-before-allocation']);
    async.deallocate(early, bytes, a);
    expect(checker.violations[0]).toMatchObject({ earlier: { operation: 'touch' }, later: { operation: 'free', access: undefined } });
    expect(checker.violations[0]?.missing).toContain('before it frees the memory');
    expect(kinds()).toEqual(['freed-while-in-use']);
    a.touch(early, 8, 'read');
    expect(checker.violations[0]?.missing).toBe(`the memory must be freed after the read on stream ${a.id} was submitted`);
    expect(kinds()).toEqual(['use-after-free']);
    const again = async.allocate(bytes, a);
    wait(b, a);
    b.touch(again, bytes, 'write');
    wait(a, b);
    async.deallocate(again, bytes, a);
    expect(kinds()).toEqual([]);
  });

  test('on every stream at once if it is plain, until it is freed on the host', () => {
    const plain = resource.allocate(64, a);
    b.touch(plain, 64, 'write');
    resource.deallocate(plain, 64, b);
    expect(kinds()).toEqual([]);
    a.touch(plain, 64, 'write');
    expect(checker.violations[0]).toMatchObject({ earlier: { operation: 'free', streamId: undefined } });
    expect(kinds()).toEqual(['use-after-free']);
  });

  test('that ends too early if plain memory is freed on a stream that does not wait for its use', () => {
    const plain = resource.allocate(64, a);
    b.touch(plain, 64, 'write');
    resource.deallocate(plain, 64, a);
    expect(kinds()).toEqual(['freed-while-in-use']);
  });

  test('of its own if it is declared as part of other memory', () => {
    declareAllocation(pointer, 256, a);
    a.touch(pointer, 256, 'write');
    declareFree(pointer, 256, a);
    expect(kinds()).toEqual([]);
    declareAllocation(pointer, 256, b);
    expect(checker.violations[0]).toMatchObject({ earlier: { operation: 'free' }, later: { operation: 'allocate' } });
    expect(checker.violations[0]?.missing).toContain('before it is given the memory');
    expect(kinds()).toEqual(['reuse-without-wait']);
    declareFree(pointer, 256, b);
    wait(a, b);
    declareAllocation(pointer, 256, a);
    b.touch(pointer, 8, 'read');
    declareFree(pointer, 256, a);
    a.touch(pointer + 255, 1, 'read');
    expect(kinds()).toEqual(['use-before-allocation', 'freed-while-in-use', 'use-after-free']);
  });

  test.each(policies)('of its own in a pool that orders its allocations (%s)', (deallocationEvents) => {
    using pool = new PoolMemoryResource(resource, { deallocationEvents });
    const streams = [a, b];
    for (let i = 0; i < 200; i++) {
      const stream = streams[i % 2] as Stream;
      const size = 256 << (i % 5);
      const address = pool.allocate(size, stream);
      declareAllocation(address, size, stream);
      set(address, 1, 1, size, stream);
      declareFree(address, size, stream);
      pool.deallocate(address, size, stream);
      if (i % 50 === 0) stream.synchronizeSync();
    }
    expect(kinds()).toEqual([]);
  });
});

describe('checking', () => {
  test('covers everything from its start on, in all memory of the thread', () => {
    checker.dispose();
    expect(isCheckingOrder()).toBe(false);
    const before = resource.allocate(64, a);
    a.touch(before, 64, 'write');
    set(before, 1, 1, 64, a);
    checker = checkOrder();
    set(before, 1, 1, 64, b);
    expect(kinds()).toEqual([]);
    a.touch(before, 64, 'write');
    expect(kinds()).toEqual(['unordered']);
    resource.deallocate(before, 64, a);
    a.touch(before, 64, 'read');
    expect(kinds()).toEqual(['use-after-free']);
    resource.deallocate(pointer, bytes, a);
    pointer = resource.allocate(bytes, a);
    set(pointer, 1, 1, 64, a);
    checker.dispose();
    checker = checkOrder();
    set(pointer, 1, 1, 64, b);
    expect(kinds()).toEqual([]);
  });

  test('costs nothing while nobody checks: the addon is called directly', () => {
    const checked = native();
    checker.dispose();
    const direct = native();
    expect(direct).not.toBe(checked);
    a.touch(-1, -1, 'neither' as 'read');
    declareAllocation(-1, -1, a);
    declareFree(-1, -1, a);
    checker = checkOrder();
    expect(native()).not.toBe(direct);
    checker.dispose();
    expect(native()).toBe(direct);
    checker = checkOrder();
  });

  test('can be started by the environment, and then warns', () => {
    const program = `
      import { CudaMemoryResource, Stream, set } from 'cistern';
      process.on('warning', ({ code, message }) => console.log(code, message.split('\\n')[0].replace(/0x.*/, '')));
      const [a, b] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
      const pointer = new CudaMemoryResource().allocate(64, a);
      for (const stream of [a, b]) set(pointer, 1, 1, 64, stream);
    `;
    const run = (CISTERN_CHECK_ORDER: string) => runModule(program, { CISTERN_CHECK_ORDER });
    expect(run('1')).toMatchObject({
      status: 0,
      stdout: 'CISTERN_ORDER two streams use memory without order: 64 bytes from \n',
    });
    expect(run('0')).toMatchObject({ status: 0, stdout: '' });
    expect(run('yes').stderr).toContain('CISTERN_CHECK_ORDER must be 0 or 1');
  });

  test('sees the calls of workers, which get their own violations if they check', () => {
    const end = runModule(
      `
      import { once } from 'node:events';
      import { Worker } from 'node:worker_threads';
      import { CudaMemoryResource, set, Stream } from 'cistern';
      import { checkOrder } from 'cistern/checking';
      const checker = checkOrder();
      const [a, b] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
      const pointer = new CudaMemoryResource().allocate(64, a);
      set(pointer, 1, 1, 64, a);
      a.hold();
      const work = async (asks) => {
        const worker = new Worker(\`
          const { parentPort } = require('node:worker_threads');
          Promise.all([import('cistern/checking'), import('cistern')]).then(([{ checkOrder }, { set, Stream }]) => {
            const checker = \${asks} ? checkOrder() : undefined;
            const stream = new Stream({ nonBlocking: true });
            set(\${pointer}, 2, 1, 64, stream);
            parentPort.postMessage(checker?.violations.map(({ earlier, later }) => [earlier.number, later.number, later.stack !== undefined]));
          });
        \`, { eval: true, execArgv: [] });
        const [violations] = await once(worker, 'message');
        await worker.terminate();
        return violations;
      };
      console.log(JSON.stringify(await work(false)), checker.violations.length);
      console.log(JSON.stringify(await work(true)), checker.violations.length);
      set(pointer, 3, 1, 64, b);
      console.log(checker.violations.length);
      process.exit();
    `,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'undefined 1\n[[0,1,true]] 1\n2\n', stderr: '' });
  });

  test('ends with the last thread that checks, even if that thread just exits', () => {
    const end = runModule(
      `
      import { once } from 'node:events';
      import { Worker } from 'node:worker_threads';
      import { CudaMemoryResource, set, Stream } from 'cistern';
      import { checkOrder } from 'cistern/checking';
      const [a, b] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
      for (let round = 0; round < 3; round++) {
        const worker = new Worker(\`
          Promise.all([import('cistern/checking'), import('cistern')]).then(([{ checkOrder }, { Stream }]) => { checkOrder(); new Stream(); require('node:worker_threads').parentPort.postMessage(0); });
        \`, { eval: true, execArgv: [] });
        await once(worker, 'message');
        const resource = new CudaMemoryResource();
        const pointer = resource.allocate(64, a);
        for (const stream of [a, b]) set(pointer, 1, 1, 64, stream);
        await worker.terminate();
        const checker = checkOrder();
        for (const stream of [a, b]) set(pointer, 1, 1, 64, stream);
        console.log('since', checker.violations.length);
        checker.dispose();
        resource.deallocate(pointer, 64, a);
      }
    `,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'since 1\n'.repeat(3), stderr: '' });
  });
});
