/** Requests that hold memory and wait for each other's, of one resource or several: one of them is refused. */

import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import { interpose } from '../../../src/driver/native.js';
import {
  CudaMemoryResource,
  DeviceBuffer,
  KiB,
  NotAdmittedError,
  PinnedHostMemoryResource,
  PoolMemoryResource,
} from '../../../src/index.js';
import {
  AdmittingResourceAdaptor,
  type Grant,
  SpillableBuffer,
  SpillingResourceAdaptor,
  type SpillPin,
} from '../../../src/serving/index.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';
import { runWithWorkers } from '../../support/workers.js';

const made: AdmittingResourceAdaptor[] = [];

afterEach(() => {
  for (const each of made.splice(0)) {
    each.validate();
    expect(each.statistics()).toMatchObject({ waiting: 0, grants: 0, committedBytes: 0 });
    each.dispose();
  }
});

function admitting(limitBytes = 4 * KiB): AdmittingResourceAdaptor {
  const resource = new AdmittingResourceAdaptor(new SpyResource(), { limitBytes });
  made.push(resource);
  return resource;
}

/** `'deadlock'`, or what the call resolved with. Grants are disposed. */
async function endOf(wait: Promise<unknown>): Promise<unknown> {
  try {
    const grant = await wait;
    (grant as Grant | undefined)?.dispose();
    return 'served';
  } catch (error) {
    expect(error).toBeInstanceOf(NotAdmittedError);
    return (error as NotAdmittedError).reason;
  }
}

/** Whether they still wait after whatever could go on has done so. */
async function stillWaiting(...waits: readonly Promise<unknown>[]): Promise<boolean> {
  let ended = 0;
  for (const wait of waits) {
    const end = () => ended++;
    wait.then(end, end);
  }
  await nextTurn();
  return ended === 0;
}

describe('a wait in the scope of another grant counts as one of that', () => {
  test('if it grows a grant', async () => {
    const resource = admitting();
    using outer = await resource.reserve(2 * KiB);
    await outer.run(async () => {
      using inner = await resource.reserve(KiB);
      expect(await endOf(inner.grow(2 * KiB))).toBe('deadlock');
      await inner.grow(KiB);
    });
  });

  test('if it tries again', async () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream, { initialBytes: 4 * KiB, maximumBytes: 4 * KiB });
    using resource = new AdmittingResourceAdaptor(pool, { limitBytes: 4 * KiB });
    using outer = await resource.reserve(2 * KiB);
    using inner = await resource.reserve(2 * KiB);
    // All that is free is in two pieces, and only the outer one could free what is between them.
    const pieces = [1, 2, 3, 4].map((kibibyte) => (kibibyte % 2 === 0 ? outer : inner).run(() => resource.allocate(KiB, stream)));
    for (const i of [0, 2]) resource.deallocate(pieces[i] as number, KiB, stream);
    const retried = outer.run(() => inner.retry(() => resource.allocate(2 * KiB, stream)));
    await expect(retried).rejects.toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
    expect(resource.statistics().refusedInDeadlock).toBe(1);
    for (const i of [1, 3]) resource.deallocate(pieces[i] as number, KiB, stream);
  });

  test('until the outer one is returned', async () => {
    const [device, host] = [admitting(), admitting()];
    const outer = await host.reserve(4 * KiB);
    using other = await device.reserve(4 * KiB);
    const waits = outer.run(() => device.reserve(KiB));
    expect(await stillWaiting(waits)).toBe(true);
    outer.dispose();
    // Would be a deadlock if the first wait still counted as one of the outer grant.
    const waitsForNobody = other.run(() => host.reserve(4 * KiB));
    (await waitsForNobody).dispose();
    expect(await stillWaiting(waits)).toBe(true);
    other.dispose();
    expect(await endOf(waits)).toBe('served');
  });
});

describe('requests that hold memory of one resource and wait for that of another', () => {
  test('are refused as the ring closes, the youngest, and the other one goes on', async () => {
    const [device, host] = [admitting(), admitting()];
    using first = await device.reserve(3 * KiB);
    const second = await host.reserve(3 * KiB);
    const waits = first.run(() => host.reserve(3 * KiB));
    expect(await stillWaiting(waits)).toBe(true);
    const refused = second.run(() => device.reserve(3 * KiB));
    await expect(refused).rejects.toThrow('all grants that hold memory wait for more, here or of other resources');
    expect(await endOf(refused)).toBe('deadlock');
    expect([device.statistics().refusedInDeadlock, host.statistics().refusedInDeadlock]).toEqual([1, 0]);
    second.dispose();
    expect(await endOf(waits)).toBe('served');
  });

  test('leave others waiting there, who are admitted by what is freed next', async () => {
    const [device, host] = [admitting(), admitting()];
    using first = await device.reserve(3 * KiB);
    const second = await host.reserve(3 * KiB);
    const outside = device.allocate(KiB, stream);
    const other = device.reserve(KiB);
    const refused = second.run(() => device.reserve(3 * KiB));
    expect([await stillWaiting(other), await stillWaiting(refused)]).toEqual([true, true]);
    const waits = first.run(() => host.reserve(3 * KiB));
    expect(await endOf(refused)).toBe('deadlock');
    expect([await stillWaiting(other), await stillWaiting(waits)]).toEqual([true, true]);
    device.deallocate(outside, KiB, stream);
    expect(await stillWaiting(other)).toBe(false);
    expect(await endOf(other)).toBe('served');
    second.dispose();
    expect(await endOf(waits)).toBe('served');
    device.validate();
  });

  test('of the least priority, in whatever order they came', async () => {
    const [device, host] = [admitting(), admitting()];
    using first = await device.reserve(3 * KiB, { priority: 1 });
    using second = await host.reserve(3 * KiB, { priority: 2 });
    const waits = endOf(first.run(() => host.reserve(3 * KiB, { priority: 9 })));
    const others = second.run(() => device.reserve(3 * KiB));
    expect(await waits).toBe('deadlock');
    first.dispose();
    expect(await endOf(others)).toBe('served');
  });

  test('as old as the oldest grant around them', async () => {
    const [device, host] = [admitting(), admitting()];
    using oldest = await device.reserve(KiB);
    using middle = await host.reserve(3 * KiB);
    await oldest.run(async () => {
      using youngest = await device.reserve(2 * KiB);
      const grows = youngest.run(() => host.reserve(2 * KiB));
      expect(await endOf(middle.run(() => device.reserve(2 * KiB)))).toBe('deadlock');
      middle.dispose();
      expect(await endOf(grows)).toBe('served');
    });
  });

  test('in rings of three', async () => {
    const rooms = [admitting(), admitting(), admitting()];
    const grants = await Promise.all(rooms.map((room) => room.reserve(3 * KiB)));
    const waits = grants.map((grant, i) => endOf(grant.run(() => (rooms[(i + 1) % 3] as AdmittingResourceAdaptor).reserve(3 * KiB))));
    expect(await waits[2]).toBe('deadlock');
    for (const i of [2, 1, 0]) {
      grants[i]?.dispose();
      if (i > 0) expect(await waits[i - 1]).toBe('served');
    }
  });

  test('not while somebody who holds memory goes on, there or behind', async () => {
    const [device, host, third] = [admitting(), admitting(), admitting()];
    const [a, b, free] = [await device.reserve(3 * KiB), await host.reserve(2 * KiB), await host.reserve(2 * KiB)];
    const waits = [a.run(() => host.reserve(2 * KiB)), b.run(() => device.reserve(3 * KiB))];
    expect(await stillWaiting(...waits)).toBe(true);
    // It waits for one who goes on.
    const last = await third.reserve(4 * KiB);
    const behind = free.run(() => third.reserve(KiB));
    expect(await stillWaiting(...waits, behind)).toBe(true);
    last.dispose();
    expect(await endOf(behind)).toBe('served');
    free.dispose();
    expect(await endOf(waits[0] as Promise<Grant>)).toBe('served');
    a.dispose();
    expect(await endOf(waits[1] as Promise<Grant>)).toBe('served');
    b.dispose();
  });

  test('as the last one who could go on returns nothing that helps', async () => {
    const [device, host] = [admitting(), admitting()];
    const [a, b, free] = [await device.reserve(3 * KiB), await host.reserve(3 * KiB), await host.reserve(KiB)];
    const waits = a.run(() => host.reserve(3 * KiB));
    const others = endOf(b.run(() => device.reserve(3 * KiB)));
    expect(await stillWaiting(waits, others)).toBe(true);
    free.dispose();
    expect(await others).toBe('deadlock');
    b.dispose();
    expect(await endOf(waits)).toBe('served');
    a.dispose();
  });

  test('of several workers', () => {
    const { stdout, ...end } = runWithWorkers(
      `
      const held = await device.reserve(48 * KiB);
      const [worker] = start(\`
        const held = await host.reserve(48 * KiB);
        post('has it');
        const wait = held.run(() => device.reserve(48 * KiB));
        post(await wait.then((grant) => { grant.dispose(); return 'worker served'; }, (error) => 'worker ' + error.reason));
        held.dispose();\`);
      const ended = once(worker, 'exit');
      await received(worker);
      const told = received(worker);
      while (device.statistics().waiting === 0) await new Promise((done) => globalThis.setTimeout(done, 1));
      const wait = held.run(() => host.reserve(48 * KiB));
      show(await told);
      show(await wait.then((grant) => { grant.dispose(); return 'main served'; }));
      held.dispose();
      await ended;
      show(device.statistics().committedBytes, host.statistics().committedBytes);`,
      {
        everywhere: `
          const { AdmittingResourceAdaptor, PinnedHostMemoryResource } = cistern;
          const device = new AdmittingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 64 * KiB, shared: 'device' });
          const host = new AdmittingResourceAdaptor(new PinnedHostMemoryResource(), { limitBytes: 64 * KiB, shared: 'host' });`,
      },
    );
    expect(end).toEqual({ status: 0, signal: null, stderr: '' });
    expect(stdout.trimEnd().split('\n')).toEqual(['worker deadlock', 'main served', '0 0']);
  });

  test('at once, even if nothing else keeps the process alive', () => {
    const { stdout, status } = runWithWorkers(
      `
      const [device, host] = [resource(), resource()];
      const [a, b] = [await device.reserve(3, { priority: 0 }), await host.reserve(3, { priority: 1 })];
      const wait = a.run(() => host.reserve(4096)).catch((error) => error.reason);
      const other = b.run(() => device.reserve(4096)).then(() => 'served');
      show(await wait);
      a.dispose();
      show(await other);`,
      { everywhere: 'const resource = () => new cistern.AdmittingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 4096 });' },
    );
    expect([stdout.trimEnd().split('\n'), status]).toEqual([['deadlock', 'served'], 0]);
  });
});

describe('work that pins spillable buffers', () => {
  /** Device memory for two buffers, with promises of it, and others of the host, in whose scopes buffers are pinned. */
  function spilling() {
    const host = admitting();
    const device = new AdmittingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 2 * KiB });
    const pinned = new PinnedHostMemoryResource();
    const resource = new SpillingResourceAdaptor(device, new PoolMemoryResource(pinned));
    const buffers = [1, 2, 3].map((value) => new SpillableBuffer(new Uint8Array(KiB).fill(value), { stream, resource }));
    const dispose = () => {
      for (const each of [...buffers, resource, device]) each.dispose();
    };
    return { host, device, resource, buffers: buffers as [SpillableBuffer, SpillableBuffer, SpillableBuffer], [Symbol.dispose]: dispose };
  }

  test('is refused memory that only its own pin keeps', async () => {
    using bed = spilling();
    const { host, device, buffers } = bed;
    using grant = await host.reserve(KiB);
    await grant.run(async () => {
      using _pin = await buffers[0].pin();
      using _other = await buffers[1].pin();
      expect(await endOf(device.reserve(KiB))).toBe('deadlock');
      await expect(buffers[2].pin()).rejects.toMatchObject({ reason: 'deadlock' });
    });
    // Its pins have ended.
    (await device.reserve(KiB)).dispose();
    (await buffers[2].pin()).dispose();
  });

  test('waits for memory that the pins of others keep, until all wait for each other', async () => {
    using bed = spilling();
    const { host, buffers } = bed;
    const [a, b] = [await host.reserve(KiB), await host.reserve(KiB)];
    const pins = [await a.run(() => buffers[0].pin()), await b.run(() => buffers[1].pin())];
    const waits = a.run(() => buffers[2].pin());
    expect(await stillWaiting(waits)).toBe(true);
    expect(await endOf(b.run(() => buffers[2].pin()))).toBe('deadlock');
    expect(await stillWaiting(waits)).toBe(true);
    pins[1]?.dispose();
    (await waits).dispose();
    pins[0]?.dispose();
    for (const each of [a, b]) each.dispose();
  });

  test('does not count as waiting any more once it was served', async () => {
    using bed = spilling();
    const { host, buffers } = bed;
    const [a, b] = [await host.reserve(KiB), await host.reserve(KiB)];
    const pins = [await b.run(() => buffers[0].pin()), await b.run(() => buffers[1].pin())];
    const served = a.run(() => buffers[2].pin());
    expect(await stillWaiting(served)).toBe(true);
    pins[0]?.dispose();
    const pin = await served;
    const waits = b.run(() => buffers[0].pin());
    expect(await stillWaiting(waits)).toBe(true);
    pin.dispose();
    (await waits).dispose();
    pins[1]?.dispose();
    for (const each of [a, b]) each.dispose();
  });

  test('does not count as waiting any more once it was served, although it was woken in vain before', async () => {
    using bed = spilling();
    const { host, resource, buffers } = bed;
    const [a, b] = [await host.reserve(KiB), await host.reserve(KiB)];
    const pins = [await b.run(() => buffers[0].pin()), await b.run(() => buffers[1].pin())];
    const served = a.run(() => buffers[2].pin());
    for (let woken = 0; woken < 3; woken++) {
      expect(await stillWaiting(served)).toBe(true);
      resource.isIdle();
    }
    pins[0]?.dispose();
    const pin = await served;
    const waits = b.run(() => buffers[0].pin());
    expect(await stillWaiting(waits)).toBe(true);
    pin.dispose();
    (await waits).dispose();
    pins[1]?.dispose();
    for (const each of [a, b]) each.dispose();
  });

  test('waits with others in a ring of a pin and a promise', async () => {
    using bed = spilling();
    const { host, buffers } = bed;
    using a = await host.reserve(3 * KiB);
    using b = await host.reserve(KiB);
    const pins = [await b.run(() => buffers[0].pin()), await b.run(() => buffers[1].pin())];
    const waits = a.run(() => buffers[2].pin());
    expect(await stillWaiting(waits)).toBe(true);
    expect(await endOf(b.run(() => host.reserve(3 * KiB)))).toBe('deadlock');
    for (const pin of pins) pin.dispose();
    (await waits).dispose();
  });

  test.each<[string, (bed: ReturnType<typeof spilling>) => Promise<Disposable>]>([
    ['pins outside all grants', ({ buffers }) => buffers[1].pin()],
    [
      'has a buffer that cannot leave',
      async ({ buffers, resource }) => {
        buffers[1].dispose();
        return new DeviceBuffer(KiB, { stream, resource });
      },
    ],
  ])('waits while somebody whose grants are not known %s', async (_, keep) => {
    using bed = spilling();
    const { host, buffers } = bed;
    using grant = await host.reserve(KiB);
    const others = await keep(bed);
    const pin = await grant.run(() => buffers[0].pin());
    const waits = grant.run(() => buffers[2].pin());
    expect(await stillWaiting(waits)).toBe(true);
    others[Symbol.dispose]();
    (await waits).dispose();
    pin.dispose();
  });

  test('keeps nothing once its pin has ended', async () => {
    using bed = spilling();
    const { host, device, buffers } = bed;
    const [a, b] = [await host.reserve(2 * KiB), await host.reserve(2 * KiB)];
    (await a.run(() => buffers[0].pin())).dispose();
    const others = [await buffers[0].pin(), await buffers[1].pin()];
    // One waits for memory outside grants, and the other one for the first: would be a ring if the pin still counted.
    const waits = b.run(() => device.reserve(KiB));
    const behind = a.run(() => host.reserve(KiB));
    expect(await stillWaiting(waits, behind)).toBe(true);
    for (const pin of others) pin.dispose();
    expect(await endOf(waits)).toBe('served');
    b.dispose();
    expect(await endOf(behind)).toBe('served');
    a.dispose();
  });

  test.each(['before', 'after'])(
    'is refused as the last one whose grants were not known, who came %s it, gives back too little',
    async (when) => {
      using bed = spilling();
      const { host, buffers } = bed;
      using grant = await host.reserve(KiB);
      const pins: SpillPin[] = [];
      let others = when === 'before' ? await buffers[1].pin() : undefined;
      await grant.run(async () => {
        for (const each of [buffers[0], buffers[1]]) pins.push(await each.pin());
      });
      others ??= await buffers[1].pin();
      const waits = grant.run(() => buffers[2].pin());
      expect(await stillWaiting(waits)).toBe(true);
      const outcome = expect(waits).rejects.toMatchObject({ reason: 'deadlock' });
      others.dispose();
      await outcome;
      for (const pin of pins) pin.dispose();
    },
  );
});

test('a grant within many others names none of them unless it waits', async () => {
  const resource = admitting(64 * KiB);
  /** For each call that asks: how many holders it names. */
  const named: (number | undefined)[] = [];
  interpose(({ askForAdmission }) => ({
    askForAdmission: (handle, bytes, priority, holder, grows, others) => {
      named.push(others === undefined ? undefined : others.length / 2);
      askForAdmission(handle, bytes, priority, holder, grows, others);
    },
  }));
  const within = async (levels: number): Promise<unknown> => {
    using grant = await resource.reserve(256);
    if (levels > 1) return await grant.run(() => within(levels - 1));
    return await grant.run(() => endOf(resource.reserve(64 * KiB)));
  };
  try {
    expect(await within(100)).toBe('deadlock');
  } finally {
    interpose();
  }
  expect(named).toEqual([...Array(101).fill(undefined), 100]);
});
