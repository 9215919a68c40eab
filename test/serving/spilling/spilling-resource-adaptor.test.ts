/** When an adaptor makes members leave, and what waits for memory: with resources and members that only do as they are told. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterAll, afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { BufferMemory } from '../../../src/buffers/buffer-memory.js';
import { freeSoonerOrLater } from '../../../src/collector/free-unreachable-buffers.js';
import { Device, HostMemoryResource, type MemoryKind, type MemoryResource, OutOfMemoryError, Stream } from '../../../src/index.js';
import { AdmittingResourceAdaptor, SpillingResourceAdaptor, type SpillingResourceAdaptorOptions } from '../../../src/serving/index.js';
import { Filing } from '../../../src/serving/spilling/filing.js';
import type { Move } from '../../../src/serving/spilling/moves.js';
import type { Spillable } from '../../../src/serving/spilling/spill-members.js';
import { liveSpillingAdaptors } from '../../../src/serving/spilling/spilling-resource-adaptor.js';
import { caught, code } from '../../support/errors.js';
import { needCaptures } from '../../support/need-captures.js';
import { skipTest } from '../../support/skip-test.js';

const disposedError = code('ERR_CISTERN_DISPOSED');
const page = 4096;
const plain = new HostMemoryResource();
const stream = new Stream({ nonBlocking: true });
const [contents, copies] = [plain.allocate(page, stream), plain.allocate(page, stream)];
const folder = mkdtempSync(join(tmpdir(), 'cistern-spill-test-'));
afterAll(() => rmSync(folder, { recursive: true }));

const none = (requestedBytes = 7) => new OutOfMemoryError('none is left', { requestedBytes, path: [] });

/** Has memory unless the test says that there is none: once for each of `shortages`, which may do something. */
class Below implements MemoryResource {
  readonly device = Device.get();
  readonly shortages: (() => void)[] = [];
  readonly calls: unknown[][] = [];

  constructor(
    readonly memoryKind: MemoryKind = 'device',
    readonly pointer = page,
  ) {}

  allocate(bytes: number, ...rest: unknown[]): number {
    this.calls.push([bytes, ...rest]);
    const shortage = this.shortages.shift();
    shortage?.();
    if (shortage !== undefined) throw none(bytes);
    return bytes === 0 ? 0 : this.pointer;
  }

  deallocate(...call: unknown[]): void {
    this.calls.push(call);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}
}

/** A member that leaves when it is asked to, if the host has memory. */
class Member {
  readonly label = undefined;
  isPinnedOutsideGrants = false;
  isOnHost = false;
  isInFile = false;
  devicePointer = 256;
  isPinned = false;
  /** Of the file. */
  failure: Error | undefined;
  asked = 0;
  uses = 0;
  lastUse = 0;
  rank = 0;
  serial = 0;
  heapPlace = -1;

  constructor(readonly bytes = 256) {}

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
    this.isOnHost = true;
  }

  abandon(): void {}

  async goToFile(): Promise<boolean> {
    if (this.failure !== undefined) throw this.failure;
    this.isOnHost = false;
    this.isInFile = true;
    return true;
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

function joined(bytes?: number): Member {
  const member = new Member(bytes);
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
});

test('what is wrong is refused before anything else is', async () => {
  for (const policy of [null, {}, 'largest'])
    expect(caught(() => made({ policy: policy as never }))).toMatchObject({ message: expect.stringMatching(/^policy must be /) });
  await expect(adaptor.spillToFiles(-1)).rejects.toThrow(RangeError);
  adaptor = made({ softBytes: 0 });
  const member = joined();
  expect(caught(() => adaptor.allocate(2 ** 53, stream))).toEqual(code('ERR_OUT_OF_RANGE'));
  expect([member.asked, below.calls]).toEqual([0, []]);
});

test.each<[string, () => unknown, string | RegExp]>([
  ['a host that is none', () => new SpillingResourceAdaptor(below, {} as MemoryResource), /^host must be a MemoryResource/],
  [
    'a host on the device',
    () => new SpillingResourceAdaptor(below, below),
    'host must be a resource of pinned host memory, got one of kind "device"',
  ],
  ['a soft limit', () => made({ softBytes: -1 }), /^softBytes must be an integer/],
  ['a limit of the host', () => made({ folder, hostBytes: -1 }), /^hostBytes must be an integer/],
  ['a limit that is no size', () => made({ folder, hostBytes: 'much' }), /^hostBytes must be /],
  ['a limit without a folder', () => made({ hostBytes: 1 }), 'hostBytes must not be given without a folder, got 1'],
  ['a folder', () => made({ folder: '' }), /^folder must be a non-empty string/],
  ['bytes to spill', () => adaptor.spill(0.5), /^bytes must be an integer/],
])('what is wrong is refused: %s', (_, call, message) => {
  const error = caught<Error>(call);
  if (typeof message === 'string') expect(error.message).toBe(message);
  else expect(error.message).toMatch(message);
});

test('a disposed adaptor refuses what it would do', async () => {
  const member = joined();
  const message = (operation: string) => `cannot ${operation}: the SpillingResourceAdaptor is already disposed`;
  const ended = vi.spyOn(Filing.prototype, 'end');
  const withFolder = made({ folder });
  for (const each of [withFolder, adaptor]) each.dispose();
  expect(ended).toHaveBeenCalledTimes(1);
  expect(caught(() => adaptor.spill())).toMatchObject({ message: message('spill') });
  await expect(withFolder.spillToFiles()).rejects.toMatchObject({ message: message('move buffers to files') });
  expect(caught(() => adaptor.allocate(page, stream))).toMatchObject({ message: message('allocate') });
  expect([adaptor.giveIfEnough(256, () => true), member.asked, below.calls]).toEqual(['lacking', 0, []]);
});

test('a policy of the program ranks members', () => {
  const ranked: unknown[] = [];
  adaptor = made({ policy: { rank: (member) => ranked.push(member) } });
  expect(ranked).toEqual([joined()]);
});

test('statistics begin at nothing, and add up what is where', async () => {
  for (const one of [adaptor, made({ folder })]) expect(new Set(Object.values(one.statistics()))).toEqual(new Set([0]));
  adaptor = made({ folder });
  const [first, second] = [joined(1), joined(2)];
  expect([adaptor.spill(), adaptor.spill()]).toEqual([3, 0]);
  expect([await adaptor.spillToFiles(), first.isInFile, second.isInFile]).toEqual([3, true, true]);
  for (const bytes of [4, 8]) joined(bytes);
  adaptor.spill();
  for (const bytes of [16, 32, 64, 128]) joined(bytes).isPinned = bytes > 32;
  expect(adaptor.statistics()).toMatchObject({
    buffers: 8,
    fileBytes: 3,
    hostBytes: 12,
    deviceBytes: 240,
    pinnedBytes: 192,
    spills: 4,
    spilledBytes: 15,
    filed: 2,
    filedBytes: 3,
    refusedByFile: 0,
  });
  const failing = joined(256);
  failing.isPinned = false;
  failing.failure = new RangeError('EIO');
  adaptor.spill();
  for (const member of [...adaptor.members]) if (member !== (failing as Spillable)) adaptor.remove(member);
  await expect(adaptor.spillToFiles()).rejects.toThrow('EIO');
  expect(adaptor.statistics().refusedByFile).toBe(1);
});

test('without a folder nothing goes to files', async () => {
  await expect(adaptor.spillToFiles()).rejects.toMatchObject({
    message: 'cannot move buffers to files: the SpillingResourceAdaptor was given no folder',
  });
});

test('members go on to files above a limit of the host, and whoever waits is told', async () => {
  adaptor = made({ folder, hostBytes: 256 });
  const members = [joined(), joined()];
  const told = vi.spyOn(adaptor, 'isIdle');
  adaptor.spill(256);
  await settled();
  expect([members.map(({ isInFile }) => isInFile), told.mock.calls.length]).toEqual([[false, false], 0]);
  adaptor.spill();
  await settled();
  // After one of them, and in the end.
  expect([members.map(({ isInFile }) => isInFile), told.mock.calls.length]).toEqual([[true, false], 2]);
});

test('calls reach the upstream as they are, with a fence of the resource', () => {
  adaptor = made({ deallocationEvents: 'deferred' });
  const pointer = adaptor.allocate(page, stream, 512);
  adaptor.deallocate(pointer, page, stream, 'off');
  adaptor.deallocate(pointer, 0, stream);
  expect(below.calls).toEqual([
    [page, stream, 512],
    [pointer, page, stream, 'off'],
    [pointer, 0, stream, 'deferred'],
  ]);
});

test('streams are of the device of the upstream', () => {
  if (Device.count() < 2) skipTest('needs two devices');
  class There extends Below {
    override readonly device = Device.get(1);
  }
  const one = new SpillingResourceAdaptor(new There(), new There('pinned-host'));
  adaptors.push(one);
  expect([one.outward.device, one.homeward.device]).toEqual([one.device, one.device]);
});

test('memory of the host is asked for, and a refusal is counted, unless it is tentative', () => {
  adaptor = made({ folder });
  const wanted = vi.spyOn(Filing.prototype, 'moveInBackground');
  expect(adaptor.allocateHost(page, true)).toBe(host.pointer);
  const refusedBy = (isTentative: boolean, refusal: () => void) => {
    host.shortages.push(refusal);
    return [adaptor.allocateHost(page, isTentative), adaptor.statistics().refusedByHost, adaptor.hostRefusal !== undefined];
  };
  expect(refusedBy(true, () => {})).toEqual([0, 0, false]);
  expect(wanted).not.toHaveBeenCalled();
  expect(refusedBy(false, () => {})).toEqual([0, 1, true]);
  expect(wanted.mock.calls).toEqual([[page]]);
  const broken = () => {
    throw new RangeError('broken');
  };
  expect(caught(() => refusedBy(false, broken))).toMatchObject({ message: 'broken' });
});

test('what a limit asks for is given if it is enough, and an error of a copy is none of the limit', () => {
  const member = joined();
  const give = (bytes: number) => adaptor.giveIfEnough(bytes, (pointer, of) => pointer === member.devicePointer && of === adaptor);
  expect([give(257), member.asked, give(256), member.asked]).toEqual(['lacking', 0, 'given', 1]);
  joined().devicePointer = 512;
  const other = joined();
  host.shortages.push(() => {
    throw new RangeError('broken');
  });
  expect([adaptor.giveIfEnough(256, () => true), adaptor.statistics().failedForAdmission, other.isOnHost]).toEqual(['refused', 1, false]);
});

test('no member leaves for an allocation on a captured stream', () => {
  needCaptures(stream);
  const member = joined();
  const captured = new Stream({ nonBlocking: true });
  below.shortages.push(() => {});
  captured.beginCapture();
  expect(caught(() => adaptor.allocate(page, captured))).toMatchObject({ message: 'none is left' });
  captured.endCapture().dispose();
  captured.dispose();
  expect([member.asked, below.calls.length]).toEqual([0, 1]);
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
  adaptor = made({ folder });
  const looks = vi.spyOn(Filing.prototype, 'keepHostBelow');
  expect([adaptor.spill(), looks.mock.calls.length]).toEqual([0, 0]);
  joined();
  expect([adaptor.spill(), looks.mock.calls.length]).toEqual([256, 1]);
});

test('each admission below is told that a member can leave', () => {
  const admissions = [new AdmittingResourceAdaptor(below, { limitBytes: page })];
  admissions.push(new AdmittingResourceAdaptor(admissions[0] as MemoryResource, { limitBytes: page }));
  const told = vi.spyOn(AdmittingResourceAdaptor.prototype, 'admitBySpilling');
  const above = vi.spyOn(AdmittingResourceAdaptor.prototype, 'takeFrom');
  const one = made({}, admissions[1]);
  expect([new Set(above.mock.contexts), above.mock.calls]).toEqual([new Set(admissions), [[one], [one]]]);
  one.isIdle();
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

  test('tells what a file would have prevented', async () => {
    adaptor = made({ folder });
    const member = joined();
    member.failure = new RangeError('EIO');
    adaptor.spill();
    await expect(adaptor.spillToFiles()).rejects.toThrow('EIO');
    const attempt = () => {
      throw none();
    };
    await expect(adaptor.inTurn(attempt, {})).rejects.toMatchObject({
      message: 'none is left; buffers could not go on to files: EIO',
      requestedBytes: 7,
      path: ['SpillingResourceAdaptor'],
      cause: member.failure,
    });
  });
});

describe('a call that needs memory of somebody', () => {
  /** Whether it waits, and whether somebody of whom no grant is known may give memory back. */
  async function waits(): Promise<[waits: boolean, others: unknown[]]> {
    const others = vi.spyOn(adaptor.pinHolds, 'noteOthers').mockClear();
    const withdrawn = vi.fn();
    const begun = vi.spyOn(adaptor.pinHolds, 'wait').mockClear().mockReturnValue(withdrawn);
    const controller = new AbortController();
    const attempt = vi.fn(() => {
      throw none();
    });
    let isOver = false;
    const waiting = adaptor
      .inTurn(attempt, { signal: controller.signal })
      .catch(() => {})
      .finally(() => {
        isOver = true;
      });
    await settled();
    const result = !isOver;
    if (result) {
      adaptor.isIdle();
      await settled();
      expect([attempt.mock.calls.length, begun.mock.calls.length, withdrawn.mock.calls.length]).toEqual([3, 1, 0]);
    }
    controller.abort();
    await waiting;
    expect(withdrawn).toHaveBeenCalledTimes(result ? 1 : 0);
    return [result, [...new Set(others.mock.calls.flat())]];
  }

  test('waits while somebody has it who may give it back', async () => {
    const member = joined();
    adaptor.allocate(member.bytes, stream);
    expect(await waits()).toEqual([false, []]);
    member.isPinned = true;
    expect(await waits()).toEqual([true, [false]]);
    member.isPinnedOutsideGrants = true;
    expect(await waits()).toEqual([true, [true]]);
    [member.isPinned, member.isPinnedOutsideGrants] = [false, false];
    adaptor.allocate(1, stream);
    expect(await waits()).toEqual([true, [true]]);
  });

  test('waits while members are on their way to files', async () => {
    adaptor = made({ folder });
    const going = vi.spyOn(Filing.prototype, 'isGoingOn', 'get').mockReturnValue(true);
    expect(await waits()).toEqual([true, [true]]);
    going.mockReturnValue(false);
    expect(await waits()).toEqual([false, []]);
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
    const ended = vi.fn();
    for (const wait of waits) wait.catch(ended);
    await settled();
    expect(ended).toHaveBeenCalledTimes(2);
    for (const wait of waits) await expect(wait).rejects.toMatchObject({ code: 'ERR_CISTERN_DISPOSED', message });
    expect(await attempts()).toBe(0);
  });

  test('is none of a resource that has just been disposed, with others in the line', async () => {
    const first = adaptor.inTurn(attempt, {});
    await settled();
    adaptor.dispose();
    const waits = vi.spyOn(adaptor.pinHolds, 'wait');
    const refused = [first, adaptor.inTurn(attempt, {})].map((wait) => expect(wait).rejects.toEqual(disposedError));
    expect(waits).not.toHaveBeenCalled();
    await Promise.all(refused);
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
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
    const began = vi.spyOn(globalThis, 'setInterval');
    const controllers = [new AbortController(), new AbortController()];
    const waits = controllers.map(({ signal }) => adaptor.inTurn(attempt, { signal }));
    await settled();
    const timer: NodeJS.Timeout = began.mock.results[0]?.value;
    expect([began.mock.calls.length, vi.getTimerCount(), timer.hasRef()]).toEqual([1, 1, true]);
    expect(await attempts()).toBe(2);
    vi.advanceTimersByTime(1000);
    expect(await attempts()).toBe(1);
    for (const [i, wait] of waits.entries()) {
      controllers[i]?.abort(new Error('no more'));
      await expect(wait).rejects.toThrow('no more');
      expect(vi.getTimerCount()).toBe(1 - i);
    }
  });
});
