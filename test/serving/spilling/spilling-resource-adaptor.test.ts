/** When an adaptor makes members leave, and what waits for memory: with resources and members that only do as they are told. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { BufferMemory } from '../../../src/buffers/buffer-memory.js';
import { freeSoonerOrLater } from '../../../src/collector/free-unreachable-buffers.js';
import { Device, HostMemoryResource, type MemoryKind, type MemoryResource, OutOfMemoryError, Stream } from '../../../src/index.js';
import { AdmittingResourceAdaptor, SpillingResourceAdaptor, type SpillingResourceAdaptorOptions } from '../../../src/serving/index.js';
import { Filing } from '../../../src/serving/spilling/filing.js';
import type { Move } from '../../../src/serving/spilling/moves.js';
import type { Spillable } from '../../../src/serving/spilling/spill-members.js';
import { liveSpillingAdaptors } from '../../../src/serving/spilling/spilling-resource-adaptor.js';
import { caught, code } from '../../support/errors.js';

const disposedError = code('ERR_CISTERN_DISPOSED');
const page = 4096;
const plain = new HostMemoryResource();
const stream = new Stream({ nonBlocking: true });
const [contents, copies] = [plain.allocate(page, stream), plain.allocate(page, stream)];

const none = (requestedBytes = 7) => new OutOfMemoryError('none is left', { requestedBytes, path: [] });

/** Has memory unless the test says that there is none: once for each of `shortages`, which may do something. */
class Below implements MemoryResource {
  readonly device = Device.get();
  readonly shortages: (() => void)[] = [];
  calls = 0;

  constructor(
    readonly memoryKind: MemoryKind = 'device',
    readonly pointer = page,
  ) {}

  allocate(bytes: number): number {
    this.calls++;
    const shortage = this.shortages.shift();
    shortage?.();
    if (shortage !== undefined) throw none(bytes);
    return bytes === 0 ? 0 : this.pointer;
  }

  deallocate(): void {}

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}
}

/** A member that leaves when it is asked to, if the host has memory. */
class Member {
  readonly bytes = 256;
  readonly label = undefined;
  readonly isPinnedOutsideGrants = false;
  readonly isOnHost = false;
  readonly isInFile = false;
  devicePointer = 256;
  isPinned = false;
  asked = 0;
  uses = 0;
  lastUse = 0;
  rank = 0;
  serial = 0;
  heapPlace = -1;

  get canLeave(): boolean {
    return this.devicePointer !== 0;
  }

  get isIdle(): boolean {
    return this.canLeave;
  }

  get stack(): MemoryResource {
    return adaptor;
  }

  prepareToLeave(isTentative: boolean): Move | undefined {
    this.asked++;
    if (adaptor.allocateHost(page, isTentative) === 0) return undefined;
    const at = (pointer: number) => ({ pointer, stream }) as BufferMemory;
    return { moves: this, from: at(contents), to: at(copies), bytes: this.bytes };
  }

  assertHasContents(): void {}

  end(): void {
    this.devicePointer = 0;
  }

  abandon(): void {}

  goToFile(): Promise<boolean> {
    return Promise.resolve(false);
  }
}

/** Memory whose first free is refused: whoever frees what was refused finds it. */
class Garbage {
  pointer = 256;
  readonly label = undefined;
  readonly createdAt = undefined;
  readonly resource = plain;
  #wasRefused = false;

  constructor(readonly bytes = 1) {
    freeSoonerOrLater(this);
  }

  get isFree(): boolean {
    return this.pointer === 0;
  }

  free(): void {
    if (this.#wasRefused) this.pointer = 0;
    this.#wasRefused = true;
    if (!this.isFree) throw new Error('not now');
  }
}

let below: Below;
let host: Below;
let adaptor: SpillingResourceAdaptor;
const adaptors: SpillingResourceAdaptor[] = [];

function made(options: SpillingResourceAdaptorOptions = {}, upstream: MemoryResource = below): SpillingResourceAdaptor {
  const one = new SpillingResourceAdaptor(upstream, host, options);
  adaptors.push(one);
  return one;
}

function joined(): Member {
  const member = new Member();
  adaptor.members.join(member);
  return member;
}

beforeEach(() => {
  below = new Below();
  host = new Below('pinned-host', 2 * page);
  adaptor = made();
});

afterEach(() => {
  for (const each of adaptors.splice(0)) each.dispose();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

/** Waits that go on. */
const settled = async () => {
  await nextTurn();
  await nextTurn();
};

test('an adaptor is live until it is disposed, and has streams that wait for no other', () => {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-spill-test-'));
  const one = made({ folder });
  expect(liveSpillingAdaptors()).toContain(one);
  const { outward, homeward, fromFiles } = one;
  expect([outward, homeward, fromFiles.stream].map(({ isNonBlocking }) => isNonBlocking)).toEqual([true, true, true]);
  expect([one.isLive, one.outward, one.homeward, outward === homeward]).toEqual([true, outward, homeward, false]);
  one.dispose();
  expect(liveSpillingAdaptors()).not.toContain(one);
  expect([one.isLive, outward.isDisposed, homeward.isDisposed]).toEqual([false, true, true]);
  for (const read of [() => one.outward, () => one.homeward, () => one.fromFiles, () => one.assertMoves()])
    expect(caught(read)).toMatchObject({ message: 'cannot move a buffer: the SpillingResourceAdaptor is already disposed' });
  rmSync(folder, { recursive: true });
});

test('what is wrong is refused before anything else is', async () => {
  for (const policy of [null, {}, 'largest'])
    expect(caught(() => made({ policy: policy as never }))).toMatchObject({ message: expect.stringMatching(/^policy must be /) });
  await expect(adaptor.spillToFiles(-1)).rejects.toThrow(RangeError);
  adaptor = made({ softBytes: 0 });
  const member = joined();
  expect(caught(() => adaptor.allocate(2 ** 53, stream))).toEqual(code('ERR_OUT_OF_RANGE'));
  expect([member.asked, below.calls]).toEqual([0, 0]);
});

test('a host that answers with what is no address is named', () => {
  class WrongHost extends Below {}
  host = new WrongHost('pinned-host', 1);
  adaptor = made();
  joined();
  expect(caught(() => adaptor.spill())).toMatchObject({
    code: 'ERR_CISTERN_FAULTY_RESOURCE',
    message: expect.stringContaining('WrongHost'),
  });
});

describe('an allocation', () => {
  test('is counted until it is freed, and makes a member leave from the first byte above the soft limit on', () => {
    adaptor = made({ softBytes: page });
    const member = joined();
    const { liveBytes } = adaptor.statistics();
    const [one, empty] = [adaptor.allocate(page, stream), adaptor.allocate(0, stream)];
    expect([liveBytes, adaptor.statistics().liveBytes, one, empty, member.asked]).toEqual([0, page, page, 0, 0]);
    adaptor.allocate(1, stream);
    expect([adaptor.statistics().liveBytes, member.asked]).toEqual([page + 1, 1]);
    for (const pointer of [one, one + page]) adaptor.deallocate(pointer, pointer === one ? page : 1, stream);
    expect(adaptor.statistics().liveBytes).toBe(0);
  });

  test('for which there is none makes members leave, unless garbage has memory', () => {
    const member = joined();
    const garbage = new Garbage();
    below.shortages.push(() => {});
    expect([adaptor.allocate(page, stream), member.asked, garbage.isFree]).toEqual([page, 0, true]);
    below.shortages.push(() => {});
    expect([adaptor.allocate(page, stream), member.asked]).toEqual([page, 1]);
  });

  test('is refused if the resource is disposed meanwhile, and nobody leaves', () => {
    const member = joined();
    below.shortages.push(() => adaptor.dispose());
    const message = 'cannot allocate: the SpillingResourceAdaptor is already disposed';
    expect(caught(() => adaptor.allocate(page, stream))).toMatchObject({ code: 'ERR_CISTERN_DISPOSED', message });
    expect(member.asked).toBe(0);
  });

  test('that is refused names the host only if that has just refused memory', () => {
    const member = joined();
    host.shortages.push(() => {});
    below.shortages.push(() => {});
    expect(caught(() => adaptor.allocate(page, stream))).toMatchObject({ cause: expect.any(AggregateError) });
    expect(adaptor.hostRefusal).toBeInstanceOf(OutOfMemoryError);
    adaptor.remove(member);
    below.shortages.push(() => {});
    const { message, cause } = caught<Error>(() => adaptor.allocate(page, stream));
    expect([message, cause]).toEqual(['none is left', undefined]);
  });
});

test('what a limit above asks for names the host only if that has just refused memory', () => {
  const member = joined();
  host.shortages.push(() => {});
  expect([adaptor.giveIfEnough(256, () => true), adaptor.hostRefusal]).toEqual(['refused', expect.any(OutOfMemoryError)]);
  adaptor.remove(member);
  expect([adaptor.giveIfEnough(256, () => true), adaptor.hostRefusal]).toEqual(['lacking', undefined]);
});

test('what has left makes the host be looked at, and nothing else does', () => {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-spill-test-'));
  adaptor = made({ folder });
  const looks = vi.spyOn(Filing.prototype, 'keepHostBelow');
  expect([adaptor.spill(), looks.mock.calls.length]).toEqual([0, 0]);
  joined();
  expect([adaptor.spill(), looks.mock.calls.length]).toEqual([256, 1]);
  adaptor.dispose();
  rmSync(folder, { recursive: true });
});

test('each admission below is told that a member can leave', () => {
  const admissions = [new AdmittingResourceAdaptor(below, { limitBytes: page })];
  admissions.push(new AdmittingResourceAdaptor(admissions[0] as MemoryResource, { limitBytes: page }));
  const told = vi.spyOn(AdmittingResourceAdaptor.prototype, 'admitBySpilling');
  made({}, admissions[1]).isIdle();
  expect(new Set(told.mock.contexts)).toEqual(new Set(admissions));
  for (const each of admissions.toReversed()) each.dispose();
});

describe('a call that needs memory', () => {
  test('is made again after garbage has been freed', () => {
    const garbage = new Garbage();
    const attempt = vi.fn(() => {
      if (!garbage.isFree) throw none();
    });
    adaptor.reclaiming(attempt);
    expect(attempt).toHaveBeenCalledTimes(2);
  });

  test('in the line looks for garbage only when it would give up', async () => {
    const garbage = new Garbage();
    const attempt = vi.fn(() => {
      if (!garbage.isFree) throw none();
    });
    await adaptor.inTurn(() => adaptor.reclaiming(attempt), {});
    expect(attempt).toHaveBeenCalledTimes(3);
  });

  test('gives up if there is no garbage, and nobody can give memory back', async () => {
    const shortage = none();
    const attempt = vi.fn(() => {
      throw shortage;
    });
    await expect(adaptor.inTurn(attempt, {})).rejects.toBe(shortage);
    expect(attempt).toHaveBeenCalledTimes(2);
  });
});

describe('a call that waits', () => {
  let hasMemory: boolean;
  let attempt: ReturnType<typeof vi.fn<() => string>>;
  beforeEach(() => {
    hasMemory = false;
    attempt = vi.fn(() => {
      if (!hasMemory) throw none();
      return 'served';
    });
    // Somebody may give this back.
    adaptor.allocate(page, stream);
  });

  const attempts = async () => {
    await settled();
    return attempt.mock.calls.splice(0).length;
  };

  test('tries again when memory may have become free', async () => {
    const waiting = adaptor.inTurn(attempt, {});
    expect(await attempts()).toBe(2);
    const member = joined();
    const occasions: [string, () => void, number][] = [
      ['a member can leave', () => adaptor.isIdle(), 1],
      ['a null pointer is freed', () => adaptor.deallocate(0, page, stream), 0],
      ['a member is gone', () => adaptor.remove(member), 1],
      ['what is no member is gone', () => adaptor.remove(member as Spillable), 0],
      ['memory is freed', () => adaptor.deallocate(1, 0, stream), 1],
    ];
    for (const [what, happens, expected] of occasions) {
      happens();
      expect([what, await attempts()]).toEqual([what, expected]);
    }
    hasMemory = true;
    adaptor.isIdle();
    expect(await waiting).toBe('served');
  });

  test('ends when the resource is disposed, without another attempt', async () => {
    const message = 'cannot wait for memory: the SpillingResourceAdaptor is already disposed';
    const waits = [adaptor.inTurn(attempt, {}), adaptor.inTurn(attempt, {})];
    expect(await attempts()).toBe(2);
    adaptor.dispose();
    // Those are still in the line.
    waits.push(adaptor.inTurn(attempt, {}));
    for (const wait of waits) await expect(wait).rejects.toMatchObject({ code: 'ERR_CISTERN_DISPOSED', message });
    expect(await attempts()).toBe(0);
  });

  test('ends so if its own attempt disposes the resource', async () => {
    adaptor.deallocate(1, page, stream);
    let tries = 0;
    const disposing = () => {
      if (++tries === 2) adaptor.dispose();
      throw none();
    };
    await expect(adaptor.inTurn(disposing, {})).rejects.toEqual(disposedError);
    expect(tries).toBe(2);
  });

  test('is known as one that waits, also while it is not its turn', async () => {
    const waits = vi.spyOn(adaptor.pinHolds, 'wait');
    const first = adaptor.inTurn(attempt, {});
    await settled();
    expect(waits).toHaveBeenCalledTimes(1);
    hasMemory = true;
    adaptor.deallocate(1, page, stream);
    // Nobody has anything, but the first has not tried yet.
    const second = adaptor.inTurn(attempt, {});
    expect(waits).toHaveBeenCalledTimes(2);
    expect(await Promise.all([first, second])).toEqual(['served', 'served']);
  });

  test('tells why its time is over', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
    vi.advanceTimersByTime(1000);
    const shortage = none();
    const first = adaptor.inTurn(
      () => {
        throw shortage;
      },
      { timeoutMilliseconds: 10 },
    );
    const second = adaptor.inTurn(attempt, { timeoutMilliseconds: 5 });
    const refused = expect(second).rejects.toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      message: 'the time is over after 5 ms, and 1 others wait for memory; 4 KiB are allocated',
      requestedBytes: 0,
      path: ['SpillingResourceAdaptor'],
    });
    const refusedByUpstream = expect(first).rejects.toBe(shortage);
    await settled();
    vi.advanceTimersByTime(5);
    await refused;
    vi.advanceTimersByTime(5);
    await refusedByUpstream;
    expect(attempt).not.toHaveBeenCalled();
  });

  test('that would wait for itself is refused, with what it needs', async () => {
    const refuse: (() => void)[] = [];
    vi.spyOn(adaptor.pinHolds, 'wait').mockImplementation((refuseIt) => {
      refuse.push(refuseIt);
      return undefined;
    });
    const waits = [adaptor.inTurn(attempt, {}), adaptor.inTurn(attempt, {})];
    await settled();
    const refusals = waits.map((wait, i) =>
      expect(wait).rejects.toMatchObject({
        code: 'ERR_CISTERN_NOT_ADMITTED',
        reason: 'deadlock',
        requestedBytes: i === 0 ? 7 : 0,
        limitBytes: page,
      }),
    );
    // The second one, which has not tried yet, was the first to be known.
    for (const each of refuse) each();
    await Promise.all(refusals);
  });

  test('looks for garbage each second, and keeps the process alive, until nobody waits', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    const began = vi.spyOn(globalThis, 'setInterval');
    const controllers = [new AbortController(), new AbortController()];
    const waits = controllers.map(({ signal }) => adaptor.inTurn(attempt, { signal }));
    await settled();
    const timer: NodeJS.Timeout = began.mock.results[0]?.value;
    expect([began.mock.calls.length, vi.getTimerCount(), timer.hasRef()]).toEqual([1, 1, true]);
    for (const [i, wait] of waits.entries()) {
      controllers[i]?.abort(new Error('no more'));
      await expect(wait).rejects.toThrow('no more');
      expect(vi.getTimerCount()).toBe(1 - i);
    }
  });
});
