import { AsyncLocalStorage } from 'node:async_hooks';
import { setImmediate, setTimeout } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { afterEach, describe, expect, test } from 'vitest';
import {
  ArgumentTypeError,
  CudaMemoryResource,
  currentResource,
  Device,
  DeviceBuffer,
  HostMemoryResource,
  LimitingResourceAdaptor,
  MiB,
  resetCurrentResource,
  Stream,
  setCurrentResource,
  withResource,
} from '../../src/index.js';
import { enterScope, innermostFrame, innermostOf, nextAround } from '../../src/scopes/resource-scope.js';

function resourceOf(device = Device.get(0)): LimitingResourceAdaptor {
  return new LimitingResourceAdaptor(new CudaMemoryResource({ device }), { limitBytes: MiB });
}

afterEach(() => {
  for (let index = 0; index < Device.count(); index++) resetCurrentResource(Device.get(index));
});

describe('the current resource', () => {
  test('is initially one CudaMemoryResource for each device', () => {
    for (const device of [Device.get(0), Device.get(1)]) {
      expect(currentResource(device)).toBeInstanceOf(CudaMemoryResource);
      expect(currentResource(device).device).toBe(device);
      expect(currentResource(device)).toBe(currentResource(device));
    }
    expect(currentResource()).toBe(currentResource(Device.get(0)));
  });

  test('is the one set for its device, and setting it returns the previous one', () => {
    const initial = currentResource();
    const [first, second] = [resourceOf(), resourceOf()];
    expect(setCurrentResource(first)).toBe(initial);
    expect(setCurrentResource(second)).toBe(first);
    expect(currentResource()).toBe(second);
    expect(resetCurrentResource()).toBe(second);
    expect(currentResource()).toBe(initial);
    expect(resetCurrentResource()).toBe(initial);
  });

  test('of one device does not affect the other', () => {
    const [first, second] = [resourceOf(Device.get(0)), resourceOf(Device.get(1))];
    const initial = currentResource(Device.get(0));
    setCurrentResource(second);
    expect([currentResource(Device.get(0)), currentResource(Device.get(1))]).toEqual([initial, second]);
    setCurrentResource(first);
    resetCurrentResource(Device.get(1));
    expect(currentResource(Device.get(0))).toBe(first);
    expect(currentResource(Device.get(1))).toBeInstanceOf(CudaMemoryResource);
  });

  test('refuses anything that is not a resource, or not a device', () => {
    const initial = currentResource();
    expect(() => setCurrentResource({} as HostMemoryResource)).toThrow(ArgumentTypeError);
    expect(() => setCurrentResource({ allocate() {}, deallocate() {} } as unknown as HostMemoryResource)).toThrow(ArgumentTypeError);
    expect(currentResource()).toBe(initial);
    expect(() => currentResource(1 as unknown as Device)).toThrow('device must be a Device, got 1');
    expect(() => resetCurrentResource('0' as unknown as Device)).toThrow('device must be a Device, got "0"');
  });

  test('belongs to its environment: a worker has its own', async () => {
    const resource = resourceOf();
    setCurrentResource(resource);
    const text = `
      const { parentPort } = require('node:worker_threads');
      import('cistern').then(({ currentResource, HostMemoryResource, setCurrentResource, withResource }) => {
        const before = currentResource().constructor.name;
        const host = new HostMemoryResource();
        setCurrentResource(host);
        parentPort.postMessage([before, currentResource() === host]);
      });
    `;
    const seen = await withResource(
      resource,
      () =>
        new Promise((resolve, reject) => {
          const worker = new Worker(text, { eval: true, execArgv: [] });
          worker.once('message', resolve).once('error', reject);
        }),
    );
    expect(seen).toEqual(['CudaMemoryResource', true]);
    expect(currentResource()).toBe(resource);
  });
});

describe('withResource', () => {
  test('makes a resource the current one inside a function, and returns what that returns', () => {
    const [set, scoped] = [resourceOf(), resourceOf()];
    setCurrentResource(set);
    expect(withResource(scoped, () => currentResource())).toBe(scoped);
    expect(currentResource()).toBe(set);
  });

  test('takes precedence over what is set inside it, which applies afterwards', () => {
    const [set, scoped] = [resourceOf(), resourceOf()];
    withResource(scoped, () => {
      setCurrentResource(set);
      expect(currentResource()).toBe(scoped);
    });
    expect(currentResource()).toBe(set);
  });

  test('ends if the function throws, or its promise rejects', async () => {
    const initial = currentResource();
    const failure = new Error('no');
    expect(() =>
      withResource(resourceOf(), () => {
        throw failure;
      }),
    ).toThrow(failure);
    expect(currentResource()).toBe(initial);
    await expect(withResource(resourceOf(), () => Promise.reject(failure))).rejects.toBe(failure);
    expect(currentResource()).toBe(initial);
  });

  test('nests: the innermost of a device wins, and other devices keep theirs', () => {
    const [outer, inner, other] = [resourceOf(), resourceOf(), resourceOf(Device.get(1))];
    const seen = () => [Device.get(0), Device.get(1)].map((device) => currentResource(device));
    const initial = seen();
    withResource(outer, () => {
      withResource(other, () => {
        expect(seen()).toEqual([outer, other]);
        withResource(inner, () => expect(seen()).toEqual([inner, other]));
        expect(seen()).toEqual([outer, other]);
      });
      expect(seen()).toEqual([outer, initial[1]]);
    });
  });

  test('covers awaited promises, timers and queued callbacks that start inside, even after it ended', async () => {
    const initial = currentResource();
    const resource = resourceOf();
    const seen: unknown[] = [];
    let late = Promise.resolve();
    const note = () => void seen.push(currentResource());
    const end = withResource(resource, async () => {
      queueMicrotask(note);
      process.nextTick(note);
      late = setTimeout(5).then(note);
      await setImmediate();
      note();
      await new Promise<void>((resolve) => void globalThis.setTimeout(() => resolve(note()), 1));
    });
    expect(currentResource()).toBe(initial);
    await end;
    expect(currentResource()).toBe(initial);
    await late;
    expect(seen).toEqual(Array(5).fill(resource));
  });

  test('keeps concurrent asynchronous functions apart', async () => {
    const resources = Array.from({ length: 8 }, () => resourceOf());
    const rounds = await Promise.all(
      resources.map((resource, i) =>
        withResource(resource, async () => {
          const seen: boolean[] = [];
          for (let round = 0; round < 10; round++) {
            await (round % 2 === 0 ? setImmediate() : setTimeout((i * 7 + round) % 3));
            seen.push(currentResource() === resource);
          }
          return seen;
        }),
      ),
    );
    expect(rounds.flat()).toEqual(Array(80).fill(true));
  });

  test('applies while a stream is awaited', async () => {
    const resource = resourceOf();
    using stream = new Stream();
    await withResource(resource, async () => {
      await stream.synchronize();
      expect(currentResource()).toBe(resource);
    });
  });

  test('refuses anything that is not a resource, or not a function', () => {
    expect(() => withResource(5 as unknown as HostMemoryResource, () => 1)).toThrow('resource must be a MemoryResource, got 5');
    expect(() => withResource(null as unknown as HostMemoryResource, () => 1)).toThrow('resource must be a MemoryResource, got null');
    expect(() => withResource(resourceOf(), 5 as unknown as () => void)).toThrow('fn must be a function, got 5');
  });
});

describe('a buffer without a resource', () => {
  test('takes its memory from the current one of its stream’s device, and stays with it', async () => {
    const resource = resourceOf();
    using stream = new Stream();
    using buffer = withResource(resource, () => new DeviceBuffer(Uint8Array.of(1, 2, 3), { stream }));
    expect(buffer.resource).toBe(resource);
    buffer.resize(1000);
    expect([buffer.resource, resource.allocatedBytes]).toEqual([resource, 1024]);
    expect([...(await buffer.toHost({ byteLength: 3 }))]).toEqual([1, 2, 3]);
    buffer.dispose();
    expect(resource.allocatedBytes).toBe(0);
  });

  test('uses the device of its stream', () => {
    const [here, there] = [resourceOf(Device.get(0)), resourceOf(Device.get(1))];
    using stream = new Stream({ device: Device.get(1) });
    withResource(there, () =>
      withResource(here, () => {
        using buffer = new DeviceBuffer(100, { stream });
        expect(buffer.resource).toBe(there);
      }),
    );
  });

  test('still takes an explicit one', () => {
    using stream = new Stream();
    const explicit = new HostMemoryResource();
    setCurrentResource(resourceOf());
    withResource(resourceOf(), () => {
      using buffer = new DeviceBuffer(100, { stream, resource: explicit });
      expect(buffer.resource).toBe(explicit);
      expect(() => new DeviceBuffer(100, { stream, resource: null as unknown as HostMemoryResource })).toThrow(ArgumentTypeError);
    });
  });

  test('cannot be created if the current one is disposed', () => {
    using stream = new Stream();
    const resource = resourceOf();
    setCurrentResource(resource);
    resource.dispose();
    expect(() => new DeviceBuffer(100, { stream })).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });
});

/** Calls a function within scopes that nobody looks for. */
function withinMany<T>(count: number, fn: () => T): T {
  return count === 0 ? fn() : enterScope({ kind: 'other' }, () => withinMany(count - 1, fn));
}

describe('a scope of another kind', () => {
  test('is skipped by others, and found by its own kind', () => {
    const resource = resourceOf();
    withResource(resource, () =>
      enterScope({ kind: 'other', value: 7 }, () => {
        expect(currentResource()).toBe(resource);
        expect(innermostFrame()).toMatchObject({ kind: 'other', value: 7, outer: { kind: 'resource', resource, outer: undefined } });
        withResource(resource, () => expect(innermostFrame()?.outer).toMatchObject({ kind: 'other' }));
      }),
    );
    expect(innermostFrame()).toBeUndefined();
  });

  test('is skipped in a few steps, however many there are', () => {
    let steps = 0;
    const deepest = withinMany(1000, () => {
      for (let each = innermostFrame(); each !== undefined; each = each.outer) {
        const { outer } = each;
        Object.defineProperty(each, 'outer', {
          get: () => {
            steps++;
            return outer;
          },
        });
      }
      return innermostFrame();
    });
    for (let frame = deepest, left = 1000; left > 900; frame = frame?.outer, left--) {
      steps = 0;
      expect(innermostOf('absent', frame)).toBeUndefined();
      expect(steps).toBeLessThanOrEqual(16);
    }
  });

  test('is found by its kind at every depth, with those around it', () => {
    const kinds = ['a', 'b', 'b', 'c', 'a', 'd', 'b'];
    const found: Record<string, number[]> = {};
    const enter = (depth: number): void => {
      if (depth === 60) return;
      const kind = kinds[(depth * depth) % kinds.length] as string;
      enterScope({ kind, depthOf: depth }, () => {
        found[kind] = [depth, ...(found[kind] ?? [])];
        for (const each of [...kinds, 'absent']) {
          const list: unknown[] = [];
          for (let frame = innermostOf(each, innermostFrame()); frame !== undefined; frame = nextAround(frame)) {
            list.push((frame as unknown as { readonly depthOf: number }).depthOf);
          }
          expect(list).toEqual(found[each] ?? []);
        }
        enter(depth + 1);
      });
      found[kind]?.shift();
    };
    enter(0);
  });

  test('does not touch other asynchronous storage', () => {
    const storage = new AsyncLocalStorage<number>();
    storage.run(5, () => withResource(resourceOf(), () => expect(storage.getStore()).toBe(5)));
  });
});
