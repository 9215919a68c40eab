/**
 * What two features do with the same memory, for each pair and in each order: the table of docs/crossings.md. Whatever happens, nobody else's
 * bytes change, the buffer's are those that were written last, and nothing is left.
 */

import { readFileSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import {
  CachingMemoryResource,
  CudaMemoryResource,
  DeviceBuffer,
  type GraphExec,
  KiB,
  type MemoryResource,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  VirtualMemoryResource,
} from '../../src/index.js';
import { fromDLPack, toDLPack, wrapMemory } from '../../src/interchange/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { exportBuffer } from '../../src/processes/index.js';
import {
  Account,
  AccountingResourceAdaptor,
  AdmittingResourceAdaptor,
  SpillableBuffer,
  SpillingResourceAdaptor,
  type SpillPin,
  sleepResource,
  wakeResource,
} from '../../src/serving/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { attachBuffer, detachBuffer } from '../../src/workers/index.js';
import { checkOrderInEachTest } from '../support/order-checked-tests.js';

const bytes = 64 * KiB;
const most = 4 * bytes;
/** There is no such call for this kind of buffer. */
const none = '—';

/** A stack with everything, and one buffer, which is spillable if spilling is one of the two. */
class World {
  readonly stream = new Stream({ nonBlocking: true });
  readonly leaf: CudaMemoryResource | VirtualMemoryResource;
  readonly pool: PoolMemoryResource;
  readonly planned: PlannedMemoryResource;
  readonly admitting: AdmittingResourceAdaptor;
  readonly pinned = new PinnedHostMemoryResource();
  readonly host = new PoolMemoryResource(this.pinned);
  readonly spilling: SpillingResourceAdaptor;
  readonly top: AccountingResourceAdaptor;
  readonly cache: CachingMemoryResource;
  readonly account = new Account({ name: 'tenant', limitBytes: 2 * bytes });
  buffer!: DeviceBuffer | SpillableBuffer;
  value = 1;
  endRun = () => {};
  run: Promise<unknown> | undefined;
  isAsleep = false;

  constructor(readonly names: readonly string[]) {
    // Only virtual memory can sleep, and only other memory can be exported.
    this.leaf = names.includes('sleep') ? new VirtualMemoryResource() : new CudaMemoryResource();
    this.pool = new PoolMemoryResource(this.leaf, { deallocationEvents: 'deferred' });
    this.planned = new PlannedMemoryResource(this.pool, undefined, { planner: planAllocations, planningMilliseconds: 0 });
    this.admitting = new AdmittingResourceAdaptor(this.planned, { limitBytes: most });
    this.spilling = new SpillingResourceAdaptor(this.admitting, this.host);
    this.top = new AccountingResourceAdaptor(this.spilling);
    this.cache = new CachingMemoryResource(this.top);
    this.#make();
  }

  #make(): void {
    const { names } = this;
    const build = (resource: MemoryResource) => {
      const contents = new Uint8Array(bytes).fill(this.value);
      const options = { stream: this.stream, resource };
      this.buffer = names.includes('spilling') ? new SpillableBuffer(contents, options) : new DeviceBuffer(contents, options);
    };
    const inPass = (resource: MemoryResource) =>
      names.includes('a planned pass') ? this.planned.run(() => build(resource)) : build(resource);
    const inAccount = (resource: MemoryResource) =>
      names.includes('a quota') ? this.account.run(() => inPass(resource)) : inPass(resource);
    if (!names.includes('a run of a cache')) {
      inAccount(this.top);
      return;
    }
    this.run = this.cache.run(() => {
      inAccount(this.cache);
      return new Promise<void>((resolve) => {
        this.endRun = resolve;
      });
    });
  }

  async using<T>(use: (memory: DeviceBuffer | SpillPin) => T): Promise<T> {
    if (this.buffer instanceof DeviceBuffer) return use(this.buffer);
    using pin = await this.buffer.pin(this.stream, { timeoutMilliseconds: 0 });
    return use(pin);
  }
}

/** What one feature does with the buffer. */
interface Feature {
  /** Returns what happened. */
  begin(): Promise<string>;
  /** Writes a value through the address that it has. */
  write?(value: number): void;
  end?(): Promise<void> | void;
}

const features: Readonly<Record<string, (world: World) => Feature>> = {
  'a graph': (world) => {
    let exec: GraphExec | undefined;
    return {
      begin: async () => {
        using graph = await world.using((memory) => world.stream.capture(() => memory.fill(2)));
        exec = graph.instantiate();
        return 'yes';
      },
      write: () => {
        exec?.launch(world.stream);
        world.value = 2;
      },
      end: () => exec?.dispose(),
    };
  },
  spilling: (world) => ({ begin: async () => (world.spilling.spill() > 0 ? 'leaves' : 'stays') }),
  sleep: (world) => ({
    begin: async () => {
      await sleepResource(world.top, { keep: 'host' });
      world.isAsleep = true;
      return 'yes';
    },
    end: async () => {
      await wakeResource(world.top);
      world.isAsleep = false;
    },
  }),
  'a quota': (world) => ({
    begin: async () => {
      const more = world.account.run(() => new DeviceBuffer(2 * bytes, { stream: world.stream, resource: world.top }));
      more.dispose();
      return 'leaves';
    },
  }),
  admission: (world) => ({
    begin: async () => {
      (await world.admitting.reserve(most, { timeoutMilliseconds: 0 })).dispose();
      return 'leaves';
    },
  }),
  'another worker': (world) => ({
    begin: async () => {
      if (world.buffer instanceof SpillableBuffer) return none;
      world.buffer = attachBuffer(detachBuffer(world.buffer), { stream: world.stream });
      return 'yes';
    },
  }),
  'another process': (world) => ({
    begin: async () => {
      await world.using((memory) => exportBuffer(memory));
      return 'yes';
    },
  }),
  'a tensor': (world) => {
    let tensor: DeviceBuffer | undefined;
    return {
      begin: async () => {
        const capsule = await world.using((memory) => toDLPack(memory, { shape: [bytes], dtype: 'uint8', stream: world.stream }));
        tensor = fromDLPack(capsule, { stream: world.stream }).buffer;
        return 'yes';
      },
      write: (value) => {
        tensor?.fill(value);
        world.value = value;
      },
      end: () => tensor?.dispose(),
    };
  },
  'a planned pass': (world) => ({
    begin: async () => {
      for (let pass = 0; pass < 3; pass++) {
        world.planned.run(() => {
          using more = new DeviceBuffer(bytes, { stream: world.stream, resource: world.top });
          more.fill(9);
        });
      }
      return 'yes';
    },
  }),
  'a run of a cache': (world) => ({
    begin: async () => {
      world.endRun();
      await world.run;
      return world.buffer.isDisposed ? 'ends' : 'stays';
    },
  }),
  'a view': (world) => {
    let view: DeviceBuffer | undefined;
    let pin: SpillPin | undefined;
    return {
      begin: async () => {
        // A view of foreign memory does not hold it: the program does.
        if (world.buffer instanceof SpillableBuffer) pin = await world.buffer.pin(world.stream, { timeoutMilliseconds: 0 });
        const { ptr } = pin ?? (world.buffer as DeviceBuffer);
        view = wrapMemory({ ptr, byteLength: bytes, stream: world.stream });
        return 'yes';
      },
      write: (value) => {
        view?.fill(value);
        world.value = value;
      },
      end: () => {
        view?.dispose();
        pin?.dispose();
      },
    };
  },
};

const names = Object.keys(features);
const table = readTable(readFileSync(new URL('../../docs/crossings.md', import.meta.url), 'utf8'));

/** The cells of the first table, by row and column. */
function readTable(text: string): Map<string, Map<string, string>> {
  const rows = text
    .split('\n')
    .filter((line) => line.startsWith('|'))
    .map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
  const [head, , ...body] = rows as [string[], string[], ...string[][]];
  return new Map(body.map(([name, ...cells]) => [name as string, new Map(cells.map((cell, i) => [head[i + 1] as string, cell]))]));
}

let world: World;

checkOrderInEachTest();

afterEach(async () => {
  await world.stream.synchronize();
  const left = () => world.spilling.statistics().liveBytes - world.cache.reservedBytes;
  for (const end = performance.now() + 30_000; left() > 0 && performance.now() < end; ) await nextTurn();
  expect(left(), 'bytes that are left').toBe(0);
  for (const each of [
    world.cache,
    world.top,
    world.spilling,
    world.admitting,
    world.planned,
    world.pool,
    world.leaf,
    world.host,
    world.pinned,
  ]) {
    each[Symbol.dispose]();
  }
  world.stream.dispose();
});

async function outcomeOf(feature: Feature): Promise<string> {
  try {
    return await feature.begin();
  } catch (error) {
    const { code, reason } = error as { code?: string; reason?: string };
    if (code === undefined) throw error;
    return reason ?? code.replace('ERR_CISTERN_', '');
  }
}

describe.each(names)('%s has the memory first, and then', (first) => {
  test.each(names)('%s', async (then) => {
    world = new World([first, then]);
    const [one, other] = [(features[first] as (typeof features)[string])(world), (features[then] as (typeof features)[string])(world)];
    const before = await outcomeOf(one);
    const outcome = before === none ? none : await outcomeOf(other);
    const isThere = () => !world.isAsleep && !world.buffer.isDisposed;
    using others = world.isAsleep
      ? undefined
      : new DeviceBuffer(new Uint8Array(bytes).fill(7), { stream: world.stream, resource: world.top });
    for (const [i, each] of [one, other, one].entries()) if (isThere()) each.write?.(3 + i);
    const expectContents = async () => {
      if (!isThere()) return;
      expect(new Set(await await world.using((memory) => memory.toHost()))).toEqual(new Set([world.value]));
    };
    if (others !== undefined) expect(new Set(others.toHostSync())).toEqual(new Set([7]));
    await expectContents();
    await other.end?.();
    await one.end?.();
    await expectContents();
    world.endRun();
    await world.run;
    world.buffer.dispose();
    expect(outcome).toBe(table.get(first)?.get(then));
  });
});
