import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ArgumentRangeError, ArgumentTypeError } from '../../src/basics/errors.js';
import { GiB, MiB } from '../../src/basics/units.js';
import { configureEarlyCollection, type HeldMemory } from '../../src/collector/early-collection.js';
import { Device } from '../../src/driver/device.js';

const v8 = vi.hoisted(() => ({ now: 0, collections: [] as string[], collect: (_kind: string): void => {} }));

vi.mock('../../src/collector/reclaim-unreachable-buffers.js', () => ({
  reclaimUnreachableBuffers(kind: string): void {
    v8.collections.push(kind);
    v8.collect(kind);
  },
}));

const device = Device.get();
let held: HeldMemory;
let HeldMemoryClass: typeof HeldMemory;
let configure: typeof configureEarlyCollection;

beforeEach(async () => {
  v8.now = 0;
  v8.collections.length = 0;
  v8.collect = () => {};
  vi.spyOn(device, 'totalBytes', 'get').mockReturnValue(1 * GiB);
  vi.spyOn(performance, 'now').mockImplementation(() => v8.now);
  vi.resetModules();
  ({ HeldMemory: HeldMemoryClass, configureEarlyCollection: configure } = await import('../../src/collector/early-collection.js'));
  held = new HeldMemoryClass(device);
});

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

/** What a buffer does to the counts. */
function allocate(bytes: number): void {
  if (bytes > held.dueBytes - held.heldBytes) held.collectEarly(bytes);
  held.heldBytes += bytes;
}

function free(bytes: number): void {
  held.heldBytes -= bytes;
}

describe('garbage is collected', () => {
  it('not before buffers would hold more than three quarters of the device', () => {
    allocate(768 * MiB);
    for (let i = 0; i < 1000; i++) {
      free(700 * MiB);
      allocate(700 * MiB);
    }
    expect(v8.collections).toEqual([]);
    allocate(1);
    expect(v8.collections).toEqual(['minor', 'major']);
  });

  it('wholly only if a minor collection freed too little', () => {
    v8.collect = () => free(500 * MiB);
    allocate(768 * MiB);
    allocate(100 * MiB);
    expect(v8.collections).toEqual(['minor']);
  });

  it('no more than the time share allows, whatever it frees', () => {
    configure({ timeShare: 0.1, pressure: 0.5 });
    v8.collect = () => {
      v8.now += 5;
      free(160 * MiB);
    };
    while (v8.now < 100_000) {
      allocate(MiB);
      v8.now += 0.1;
      if (held.heldBytes > 900 * MiB) free(200 * MiB);
    }
    expect(v8.collections.length * 5).toBeLessThanOrEqual(0.1 * v8.now + 10);
    expect(v8.collections.length * 5).toBeGreaterThan(0.05 * v8.now);
  });

  it('at once above nineteen twentieths, whatever time it takes', () => {
    v8.collect = () => {
      v8.now += 1000;
      free(held.heldBytes);
    };
    allocate(768 * MiB);
    allocate(64 * MiB);
    expect(v8.collections).toHaveLength(1);
    for (let i = 0; i < 100; i++) {
      allocate(64 * MiB);
      expect(held.heldBytes).toBeLessThanOrEqual(1 * GiB);
    }
    expect(v8.collections.length).toBeGreaterThan(5);
  });

  it('not at once there if all was really held a moment ago', () => {
    v8.collect = () => {
      v8.now += 1000;
    };
    allocate(1000 * MiB);
    for (let i = 0; i < 1000; i++) {
      free(900 * MiB);
      allocate(900 * MiB);
    }
    expect(v8.collections).toEqual(['minor', 'major']);
    allocate(200 * MiB);
    expect(v8.collections).toHaveLength(4);
  });

  it('ever more rarely if all is really held', () => {
    for (let i = 0; i < 10_000; i++) {
      allocate(MiB);
      v8.now += 1000;
    }
    expect(v8.collections.length).toBeLessThan(2 * 24);
    for (let i = 0; i < 1000; i++) {
      v8.now += 1000;
      free(9000 * MiB);
      allocate(9000 * MiB);
    }
    expect(v8.collections.length).toBeLessThan(2 * 25);
  });

  it('always above nineteen twentieths of the host, as time allows', () => {
    vi.spyOn(process, 'availableMemory').mockImplementation(() => 1 * GiB - held.heldBytes);
    held = new HeldMemoryClass(undefined);
    allocate(1000 * MiB);
    for (let i = 0; i < 10; i++) {
      v8.collections.length = 0;
      free(900 * MiB);
      v8.now += 1000;
      allocate(900 * MiB);
      expect(v8.collections).toEqual(['minor', 'major']);
    }
  });

  it('before managed memory of a device that is larger than the host fills the host', () => {
    vi.spyOn(device, 'totalBytes', 'get').mockReturnValue(64 * GiB);
    vi.spyOn(process, 'availableMemory').mockImplementation(() => 1 * GiB - held.heldBytes);
    held = new HeldMemoryClass(device, true);
    allocate(768 * MiB);
    expect(v8.collections).toEqual([]);
    allocate(MiB);
    expect(v8.collections).toEqual(['minor', 'major']);
  });

  it('before managed memory exceeds a device that is smaller than the host', () => {
    vi.spyOn(process, 'availableMemory').mockReturnValue(64 * GiB);
    held = new HeldMemoryClass(device, true);
    allocate(768 * MiB);
    allocate(MiB);
    expect(v8.collections).toEqual(['minor', 'major']);
  });

  it('of managed memory and of a device apart', async () => {
    const { heldMemory } = await import('../../src/collector/early-collection.js');
    expect(new Set((['device', 'managed', 'host', 'pinned-host'] as const).map((kind) => heldMemory(kind, device))).size).toBe(3);
  });

  it('not for less than 64 MiB, however little the host has left', () => {
    vi.spyOn(process, 'availableMemory').mockReturnValue(0);
    held = new HeldMemoryClass(undefined);
    for (let i = 0; i < 64; i++) allocate(MiB);
    expect(v8.collections).toEqual([]);
    allocate(MiB);
    expect(v8.collections).toEqual(['minor', 'major']);
  });

  it('not within a collection that frees and allocates', () => {
    v8.collect = () => {
      allocate(MiB);
      free(MiB);
    };
    allocate(1 * GiB);
    expect(v8.collections).toEqual(['minor', 'major']);
  });

  it('later again, if a collection throws', () => {
    v8.collect = () => {
      throw new Error('no');
    };
    expect(() => allocate(1 * GiB)).toThrow('no');
    v8.collect = () => {};
    allocate(1 * GiB);
    expect(v8.collections).toEqual(['minor', 'minor', 'major']);
  });
});

describe('early collection', () => {
  it('is off if the environment says so, and on again if the program says so', () => {
    vi.stubEnv('CISTERN_EARLY_COLLECTION', 'off');
    allocate(10 * GiB);
    allocate(10 * GiB);
    expect(v8.collections).toEqual([]);
    vi.stubEnv('CISTERN_EARLY_COLLECTION', 'on');
    configure();
    held = new HeldMemoryClass(device);
    allocate(10 * GiB);
    expect(v8.collections).toHaveLength(2);
  });

  it('refuses any other word in the environment', () => {
    vi.stubEnv('CISTERN_EARLY_COLLECTION', 'perhaps');
    expect(() => allocate(1)).toThrow(`CISTERN_EARLY_COLLECTION must be one of on, off, got "perhaps"`);
    expect(held.heldBytes).toBe(0);
  });

  it.each([
    [{ pressure: '0.5' }, ArgumentTypeError, 'pressure must be a number, got "0.5"'],
    [{ pressure: 0 }, ArgumentRangeError, 'pressure must be above 0, got 0'],
    [{ pressure: 1.5 }, ArgumentRangeError, 'pressure must be from 0 to 1, got 1.5'],
    [{ pressure: Number.NaN }, ArgumentRangeError, 'pressure must be from 0 to 1, got NaN'],
    [{ timeShare: -1 }, ArgumentRangeError, 'timeShare must be from 0 to 1, got -1'],
    [{ timeShare: null }, ArgumentTypeError, 'timeShare must be a number, got null'],
    [null, ArgumentTypeError, 'options must be an object, got null'],
  ])('refuses %j', (options, errorClass, message) => {
    const act = () => configureEarlyCollection(options as never);
    expect(act).toThrow(errorClass);
    expect(act).toThrow(message);
  });
});
