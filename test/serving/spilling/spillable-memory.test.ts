/** Where the contents of a buffer are, and what orders their memory: with an adaptor, a lane and a file that only do as they are told. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { BufferMemory, memoryOf } from '../../../src/buffers/buffer-memory.js';
import type { OutsideUse } from '../../../src/buffers/memory-uses.js';
import { allocated } from '../../../src/buffers/origin.js';
import { freeSoonerOrLater } from '../../../src/collector/free-unreachable-buffers.js';
import { beginSleep, endSleep } from '../../../src/driver/memory/guarded-addresses.js';
import { mailbox, native } from '../../../src/driver/native.js';
import {
  CudaMemoryResource,
  Device,
  HostMemoryResource,
  LifetimeError,
  type MemoryKind,
  type MemoryResource,
  PinnedHostMemoryResource,
  Stream,
} from '../../../src/index.js';
import { endOwnersOf } from '../../../src/ownership/bulk-frees.js';
import { Account } from '../../../src/serving/index.js';
import type { AddressUses } from '../../../src/serving/spilling/address-uses.js';
import { type Move, moveTogether } from '../../../src/serving/spilling/moves.js';
import { SpillableMemory } from '../../../src/serving/spilling/spillable-memory.js';
import type { SpillingResourceAdaptor } from '../../../src/serving/spilling/spilling-resource-adaptor.js';
import { failCall } from '../../../src/tools/testing/index.js';
import { callsOf } from '../../support/driver-calls.js';
import { caught, code } from '../../support/errors.js';
import { needCaptures } from '../../support/need-captures.js';
import { skipTest } from '../../support/skip-test.js';
import { madeElsewhere } from '../../support/stream-order.js';

const disposedError = code('ERR_CISTERN_DISPOSED');
const stateError = code('ERR_CISTERN_INVALID_STATE');
const capturingError = code('ERR_CISTERN_CAPTURING');
const size = 1024;

/** Passes calls on, and lets the test do something, or throw, in the next one. */
class Below implements MemoryResource {
  readonly memoryKind: MemoryKind;
  readonly device: Device;
  readonly frees: Stream[] = [];
  readonly freed: number[] = [];
  allocations = 0;
  onAllocate: (() => void) | undefined;
  onFree: (() => void) | undefined;
  readonly #upstream: MemoryResource;

  constructor(upstream: MemoryResource) {
    this.#upstream = upstream;
    this.memoryKind = upstream.memoryKind;
    this.device = upstream.device;
  }

  allocate(bytes: number, on: Stream): number {
    const { onAllocate } = this;
    this.onAllocate = undefined;
    onAllocate?.();
    this.allocations++;
    return this.#upstream.allocate(bytes, on);
  }

  deallocate(pointer: number, bytes: number, on: Stream): void {
    const { onFree } = this;
    this.onFree = undefined;
    onFree?.();
    this.frees.push(on);
    this.freed.push(pointer);
    this.#upstream.deallocate(pointer, bytes, on);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {
    this.#upstream[Symbol.dispose]();
  }
}

const nothing = () => {};
const inUse: OutsideUse = {
  isOpen: true,
  description: 'a test uses',
  holdsFromResource: true,
  closeIfUnused: () => false,
  close: () => true,
  reopen: nothing,
  end: nothing,
  leave: nothing,
};

/** A promise that the test resolves. */
function gate() {
  let open = nothing;
  const passed = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { passed, open };
}

let streams: Stream[];
let stream: Stream;
let other: Stream;
let outward: Stream;
let homeward: Stream;
let device: Below;
let host: Below;
/** What the adaptor was told. */
let told: string[];
let isLive: boolean;
let adaptor: SpillingResourceAdaptor;
/** The streams on which a graph may have had the address. */
let noted: Stream[];
let graphs: AddressUses;
let openFiles: number;
let asked: number;
let reads: number;
let before: ReturnType<typeof gate>;
let after: ReturnType<typeof gate>;
let failure: Error | undefined;
let refusal: Error | undefined;
/** Whether a lane was told that its copy is wanted, and what it says of its read, if it is not that. */
let wanted: boolean[];
let isComplete: boolean | undefined;
let isHostFull: boolean;
/** How the host was asked. */
let tentative: boolean[];
const memories: SpillableMemory[] = [];

const newStream = () => {
  const made = new Stream({ nonBlocking: true });
  streams.push(made);
  return made;
};

beforeEach(() => {
  streams = [];
  [stream, other, outward, homeward] = Array.from({ length: 4 }, newStream) as [Stream, Stream, Stream, Stream];
  device = new Below(new CudaMemoryResource());
  host = new Below(new PinnedHostMemoryResource());
  [told, noted, wanted, isLive] = [[], [], [], true];
  [openFiles, asked, reads, failure, refusal, isComplete] = [0, 0, 0, undefined, undefined, undefined];
  [tentative, isHostFull] = [[], false];
  [before, after] = [gate(), gate()];
  const note = (what: string) => () => void told.push(what);
  const lane = {
    stream: newStream(),
    async inTurn<T>(transfer: () => Promise<T>): Promise<T> {
      asked++;
      await before.passed;
      return transfer();
    },
    async write(_pointer: number, _bytes: number, beforeCopy: () => boolean) {
      wanted.push(beforeCopy());
      if (wanted.at(-1) !== true) return undefined;
      openFiles++;
      await after.passed;
      return { close: async () => openFiles-- };
    },
    async read(_file: unknown, _pointer: number, _bytes: number, isWanted: () => boolean) {
      reads++;
      await after.passed;
      if (failure !== undefined) throw failure;
      return isComplete ?? isWanted();
    },
  };
  adaptor = {
    host,
    outward,
    homeward,
    get isLive() {
      return isLive;
    },
    allocateHost: (bytes: number, isTentative: boolean) => {
      tentative.push(isTentative);
      return isHostFull ? 0 : host.allocate(bytes, outward);
    },
    members: { join: note('joined'), used: note('used'), cameBack: note('came back'), mayLeave: note('may leave') },
    remove: note('removed'),
    isIdle: note('idle'),
    pinHolds: { begin: () => note('hold ended') },
    assertMoves: () => {
      if (refusal !== undefined) throw refusal;
    },
    fromFiles: lane,
  } as unknown as SpillingResourceAdaptor;
  graphs = { isEmpty: true, note: (on: Stream) => noted.push(on), noteUser: (on: Stream) => noted.push(on) } as unknown as AddressUses;
});

afterEach(async () => {
  for (const name of ['cuStreamWaitEvent', 'cuEventRecord']) failCall(name, 0);
  for (const gates of [before, after]) gates.open();
  for (const memory of memories.splice(0)) memory.dispose();
  await nextTurn();
  expect(openFiles).toBe(0);
  for (const each of streams) each.dispose();
  for (const each of [device, host]) each[Symbol.dispose]();
});

function made({ bytes = size, on = stream, resource = device as MemoryResource } = {}): SpillableMemory {
  const first = new BufferMemory(allocated, resource, on, 256, 'label', 'here');
  first.allocateAtOnce(bytes);
  first.byteLength = bytes;
  const memory = new SpillableMemory(first, adaptor, graphs);
  memories.push(memory);
  return memory;
}

function leave(memory: SpillableMemory): SpillableMemory {
  const move = memory.prepareToLeave(false);
  if (move === undefined) throw new Error('it has not left');
  moveTogether([move]);
  return memory;
}

async function intoFile(memory: SpillableMemory): Promise<SpillableMemory> {
  leave(memory);
  for (const gates of [before, after]) gates.open();
  expect(await memory.goToFile(adaptor.fromFiles)).toBe(true);
  [before, after] = [gate(), gate()];
  told.splice(0);
  asked = 0;
  return memory;
}

const lastUse = (memory: SpillableMemory) => memory[memoryOf].stream;
/** What an action makes streams wait for, and what the adaptor is told. */
function effects(action: () => unknown): [waits: number, told: string[]] {
  const waits = callsOf('cuStreamWaitEvent');
  const earlier = waits();
  told.splice(0);
  action();
  return [waits() - earlier, told.splice(0)];
}
/** Captures a stream as another library does: nobody is told of the end. */
const beginElsewhere = (on: Stream) => {
  native().beginCapture(on.handle, 0);
  expect(mailbox[0]).toBe(0);
};
const endElsewhere = (on: Stream) => on.endCapture().dispose();

describe('a new memory', () => {
  test.each([0, 1])('of %i bytes is a member, and is used, only if it has a byte', (bytes) => {
    const memory = made({ bytes });
    expect([memory.uses, told]).toEqual([0, bytes === 0 ? [] : ['joined']]);
    expect(effects(() => memory.noteUse())).toEqual([0, bytes === 0 ? [] : ['used']]);
  });

  test('has what its first one has', () => {
    const memory = made();
    expect([memory.label, memory.createdAt, memory.stack, memory.resource, memory.bytes]).toEqual(['label', 'here', device, device, size]);
    const { pointer } = memory[memoryOf];
    expect([pointer > 0, memory.pointer, memory.devicePointer, memory.heapPlace < 0]).toEqual([true, pointer, pointer, true]);
  });
});

describe('a memory does not leave', () => {
  /** What happens in the meantime asks, or it is asked afterwards. */
  const cases: [string, (memory: SpillableMemory, ask: () => void) => void][] = [
    ['while it is on the host', (memory) => void leave(memory)],
    ['while it is pinned', (memory) => void memory.pin(stream)],
    [
      'while it moves',
      (memory, ask) => {
        host.onAllocate = ask;
        leave(memory);
      },
    ],
    [
      'while it is disposed, in the order of a stream that has ended',
      (memory, ask) => {
        stream.dispose();
        other.launchHostFunction(ask);
        memory.dispose();
      },
    ],
    ['once it is disposed', (memory) => memory.dispose()],
    ['while a graph has its address', () => void Object.assign(graphs, { isEmpty: false })],
    [
      'while it is asleep',
      (memory, ask) => {
        const range = { begin: memory.pointer, end: memory.pointer + size };
        beginSleep(range);
        ask();
        endSleep(range);
      },
    ],
    ['while others use it', (memory) => void memory[memoryOf].addOutsideUse(inUse)],
  ];
  test.each(cases)('%s', (_, until) => {
    const memory = made();
    const answers: boolean[] = [memory.isIdle, memory.canLeave];
    const ask = () => answers.push(memory.isIdle, memory.canLeave);
    until(memory, ask);
    if (answers.length === 2) ask();
    expect(answers).toEqual([true, true, false, false]);
  });

  test('while the stream of its last use is captured, but although that has ended', () => {
    needCaptures(stream);
    const memory = made();
    stream.beginCapture();
    expect([memory.isIdle, memory.canLeave]).toEqual([true, false]);
    stream.endCapture().dispose();
    stream.dispose();
    expect([memory.isIdle, memory.canLeave]).toEqual([true, true]);
  });
});

describe('a memory that leaves', () => {
  test('is freed in the order of the copy, wherever it was, and its account knows', () => {
    const account = new Account({ name: 'tenant' });
    const memory = account.run(() => made());
    const first = memory.pointer;
    leave(memory);
    expect([memory.resource, memory.stack, memory.isOnDevice, memory.isOnHost]).toEqual([host, device, false, true]);
    expect([memory.devicePointer, memory.pointer > 0, account.spilledBytes]).toEqual([0, true, size]);
    expect([device.frees, device.freed, host.frees]).toEqual([[outward], [first], []]);
    const there = memory.pointer;
    told.splice(0);
    memory.prefetch();
    expect([memory.isOnDevice, memory.isOnHost, memory[memoryOf].byteLength, told]).toEqual([true, false, size, ['came back', 'used']]);
    expect([host.frees, host.freed, lastUse(memory) === homeward]).toEqual([[homeward], [there], true]);
  });

  test('moves until that has ended, or is abandoned', () => {
    const memory = made();
    isHostFull = true;
    expect([memory.prepareToLeave(true), memory.canLeave, tentative]).toEqual([undefined, true, [true]]);
    isHostFull = false;
    const move = memory.prepareToLeave(false) as Move;
    expect([memory.canLeave, caught(() => memory.assertLive('move')), tentative]).toEqual([false, stateError, [true, false]]);
    memory.abandon(move);
    expect([memory.canLeave, memory.isOnDevice, host.frees]).toEqual([true, true, [outward]]);
    memory.assertHasContents();
    memory.dispose();
    expect(memory.isOnDevice).toBe(false);
    for (const refused of [() => memory.assertHasContents(), () => memory.prefetch()]) expect(caught(refused)).toEqual(disposedError);
  });

  test('stays if its resource does not take it back, and leaves nothing on the host', () => {
    const memory = made();
    device.onFree = () => {
      throw new RangeError('not now');
    };
    expect(caught(() => leave(memory))).toMatchObject({ message: 'not now' });
    expect([memory.isOnDevice, memory.isOnHost, memory.canLeave, host.frees]).toEqual([true, false, true, [outward]]);
  });

  const lost = () => new LifetimeError('ERR_CISTERN_DISPOSED', 'lost');

  test('is on the host although its resource has lost it', () => {
    const memory = made();
    device.onFree = () => {
      throw lost();
    };
    expect(caught(() => leave(memory))).toMatchObject({ message: 'lost' });
    expect([memory.isOnDevice, memory.isOnHost, host.frees]).toEqual([false, true, []]);
  });

  test('has ended if its resource has taken it back, and leaves nothing on the host', () => {
    const memory = made();
    device.onFree = () => {
      memory[memoryOf].endReason = 'the pool has ended';
      throw lost();
    };
    expect(caught(() => leave(memory))).toMatchObject({ message: 'lost' });
    expect([memory.isOnHost, memory.endReason, memory.pointer, host.frees]).toEqual([false, 'the pool has ended', 0, [outward]]);
    // Why it has ended stays what it was.
    memory.dispose();
    expect(memory.endReason).toBe('the pool has ended');
  });
});

describe('several that come back', () => {
  const inOrder = () => {
    const both = [made(), made()].map(leave).sort((a, b) => a.pointer - b.pointer) as [SpillableMemory, SpillableMemory];
    return { both, pointers: both.map(({ pointer }) => pointer) };
  };

  test('do in the order of their addresses, each once', () => {
    const {
      both: [first, second],
      pointers,
    } = inOrder();
    SpillableMemory.returnAll([second, first, second]);
    expect([first.isOnDevice, second.isOnDevice, host.freed]).toEqual([true, true, pointers]);
  });

  test('do not if there is no memory for all', () => {
    const { both } = inOrder();
    const third = leave(made());
    let left = 2;
    const refuseThird = () => {
      if (left-- === 0) throw new RangeError('no memory');
      device.onAllocate = refuseThird;
    };
    device.onAllocate = refuseThird;
    const frees = device.frees.length;
    expect(caught(() => SpillableMemory.returnAll([...both, third]))).toMatchObject({ message: 'no memory' });
    expect([...both, third].map(({ isOnHost }) => isOnHost)).toEqual([true, true, true]);
    expect(device.frees.length - frees).toBe(2);
  });

  test('are not pinned if there is no memory', () => {
    const memory = leave(made());
    device.onAllocate = () => {
      throw new RangeError('no memory');
    };
    expect(caught(() => memory.pin(stream))).toMatchObject({ message: 'no memory' });
    expect([memory.isPinned, memory.isOnHost]).toEqual([false, true]);
  });
});

describe('the way to a file', () => {
  test('is none from the device', async () => {
    expect([await made().goToFile(adaptor.fromFiles), asked]).toEqual([false, 0]);
  });

  test('is gone once', async () => {
    const memory = leave(made());
    const [first, second] = [memory.goToFile(adaptor.fromFiles), memory.goToFile(adaptor.fromFiles)];
    expect([memory.isOnHost, await second, asked]).toEqual([false, false, 1]);
    const waits = callsOf('cuStreamWaitEvent');
    const earlier = waits();
    for (const gates of [before, after]) gates.open();
    expect([await first, memory.isInFile, memory.pointer, openFiles, waits() - earlier]).toEqual([true, true, 0, 1, 1]);
    expect([wanted, host.frees]).toEqual([[true], [adaptor.fromFiles.stream]]);
  });

  test('is not begun while it moves, or once it has ended', async () => {
    const memory = leave(made());
    const answers: unknown[] = [];
    const ask = () => answers.push(memory.isOnHost, memory.goToFile(adaptor.fromFiles));
    device.onAllocate = ask;
    memory.prefetch();
    leave(memory);
    expect(memory.isOnHost).toBe(true);
    endOwnersOf(new Set([host]), 'the host has ended');
    ask();
    expect(await Promise.all(answers)).toEqual([false, false, false, false]);
    expect([asked, memory.endReason]).toEqual([0, 'the host has ended']);
  });

  const meanwhile: [string, (memory: SpillableMemory) => void, boolean, boolean?][] = [
    ['comes back', (memory) => memory.prefetch(), true],
    [
      'comes back, but its memory of the host cannot be freed yet',
      (memory) => {
        host.onFree = () => {
          throw new RangeError('not now');
        };
        memory.prefetch();
      },
      true,
    ],
    ['comes back and leaves again', (memory) => void [memory.prefetch(), leave(memory)], false, true],
    ['is disposed', (memory) => memory.dispose(), false],
    // Nobody asks that one any more.
    ['is freed by the collector', (memory) => memory.free(), false, true],
    ['is taken back', () => endOwnersOf(new Set([host]), 'the host has ended'), false],
  ];
  describe.each(meanwhile)('ends if it %s', (_, happens, isOnDevice, isOnHost = false) => {
    test.each(['before the copy', 'after it'])('%s', async (when) => {
      const memory = leave(made());
      const going = memory.goToFile(adaptor.fromFiles);
      if (when === 'after it') {
        before.open();
        await nextTurn();
        expect(wanted).toEqual([true]);
      }
      happens(memory);
      const waits = callsOf('cuStreamWaitEvent');
      const earlier = waits();
      for (const gates of [before, after]) gates.open();
      expect(await going).toBe(false);
      // What has gone on is not what the lane's stream follows.
      expect([waits() - earlier, wanted]).toEqual([0, [when === 'after it']]);
      expect([memory.isInFile, memory.isOnDevice, memory.isOnHost, openFiles]).toEqual([false, isOnDevice, isOnHost, 0]);
    });
  });
});

describe('the way back from a file', () => {
  const read = async () => {
    for (const gates of [before, after]) gates.open();
    await nextTurn();
  };
  const reasonOf = async (wait: Promise<unknown> | undefined) => {
    try {
      await wait;
    } catch (error) {
      return (error as Error).message;
    }
    return undefined;
  };

  test('is begun once, ends with the contents on the device, and tells whoever waits', async () => {
    const memory = await intoFile(made());
    memory.prefetch();
    memory.prefetch();
    expect([asked, told]).toEqual([1, ['used', 'used']]);
    await read();
    expect([memory.isOnDevice, lastUse(memory) === adaptor.fromFiles.stream, openFiles]).toEqual([true, true, 0]);
    expect(told).toEqual(['used', 'used', 'came back', 'idle']);
  });

  test('cannot be used by the resource that it takes memory from', async () => {
    const memory = await intoFile(made());
    let error: unknown;
    device.onAllocate = () => {
      error = caught(() => memory.dispose());
    };
    memory.prefetch();
    expect([error, memory.endReason]).toEqual([stateError, undefined]);
    await read();
    expect(memory.isOnDevice).toBe(true);
  });

  test.each<[string, (memory: SpillableMemory) => void, string]>([
    [
      'it is disposed as the read ends',
      (memory) => {
        isComplete = true;
        memory.dispose();
      },
      'cannot bring a buffer back: the buffer is already disposed',
    ],
    ['it is disposed', (memory) => memory.dispose(), 'cannot bring a buffer back: the buffer is already disposed'],
    ['it is freed by the collector', (memory) => memory.free(), 'cannot bring a buffer back: the buffer is already disposed'],
    ['its resource ends', () => endOwnersOf(new Set([device]), 'the pool has ended'), 'cannot bring a buffer back: the pool has ended'],
    [
      'the adaptor does not move any more',
      () => {
        refusal = new RangeError('no moves');
        isComplete = false;
      },
      'no moves',
    ],
    [
      'the file cannot be read',
      () => {
        failure = new RangeError('EIO');
      },
      'EIO',
    ],
  ])('fails if %s', async (what, happens, message) => {
    const memory = await intoFile(made());
    const frees = device.frees.length;
    const { ready } = memory.pin(stream);
    const refused = reasonOf(ready);
    await nextTurn();
    happens(memory);
    await read();
    expect([await refused, memory.pointer, reads]).toEqual([message, 0, 1]);
    expect([told.includes('came back'), told.includes('idle'), device.frees.length - frees]).toEqual([false, false, 1]);
    expect(memory.isInFile).toBe(!/disposed|freed/.test(what));
  });

  test('that fails for nobody is no unhandled rejection', async () => {
    const unhandled: unknown[] = [];
    const note = (error: unknown) => unhandled.push(error);
    process.on('unhandledRejection', note);
    failure = new RangeError('EIO');
    const memory = await intoFile(made());
    memory.prefetch();
    await read();
    const canceled = memory.pin(stream);
    memory.cancelPin(canceled);
    await read();
    await nextTurn();
    process.off('unhandledRejection', note);
    expect([reads, memory.isInFile, unhandled]).toEqual([2, true, []]);
  });

  test('orders the pins that wait for it then, but for those that have ended', async () => {
    const memory = await intoFile(made());
    const ended = memory.pin(other);
    const waits = memory.pin(stream);
    expect([noted, memory[memoryOf].pointer]).toEqual([[], 0]);
    memory.unpin(ended);
    await read();
    await waits.ready;
    await ended.ready;
    expect([lastUse(memory) === stream, noted]).toEqual([true, [stream]]);
  });
});

describe('a pin', () => {
  test('is not begun of what is disposed, or on a stream that is', () => {
    const memory = made();
    other.dispose();
    const begin = (of: SpillableMemory, on: Stream) => caught<Error>(() => of.beginPin(on)).message;
    expect(begin(memory, other)).toBe(`cannot pin a buffer: stream ${other.id} is already disposed`);
    memory.dispose();
    expect(begin(memory, stream)).toBe('cannot pin a buffer: the buffer is already disposed');
  });

  test('is on a stream of the device that has the memory', () => {
    if (Device.count() < 2) skipTest('needs two devices');
    using there = new Stream({ device: Device.get(1), nonBlocking: true });
    const onHost = made({ resource: new HostMemoryResource() });
    if (!Device.get(1).hasAccessTo(Device.get(0))) expect(caught(() => made().beginPin(there))).toEqual(code('ERR_INVALID_ARG_VALUE'));
    onHost.cancelPin(onHost.beginPin(there));
  });

  test('is begun outside of grants, or holds memory of one until it ends', () => {
    const memory = made();
    const isOutside = () => memory.isPinnedOutsideGrants;
    expect(isOutside()).toBe(false);
    const within = memory.pin(stream);
    expect([isOutside(), within.end]).toEqual([false, expect.any(Function)]);
    adaptor.pinHolds.begin = () => undefined;
    const outside = memory.pin(stream);
    expect([isOutside(), outside.end]).toEqual([true, undefined]);
    expect(effects(() => memory.unpin(outside))).toEqual([0, []]);
    expect(isOutside()).toBe(false);
    expect(effects(() => memory.unpin(within))).toEqual([0, ['hold ended', 'may leave', 'idle']]);
    // What has ended does not end again.
    expect(effects(() => memory.unpin(within))).toEqual([0, []]);
    expect(effects(() => memory.cancelPin(within))).toEqual([0, ['may leave']]);
  });

  test('is not begun in a capture unless the contents are on the device', async () => {
    needCaptures(stream);
    const [onHost, inFile, there] = [leave(made({ on: other })), await intoFile(made({ on: other })), made({ on: other })];
    stream.beginCapture();
    const refusalOf = (memory: SpillableMemory) => caught<Error>(() => memory.beginPin(stream)).message;
    expect(refusalOf(onHost)).toBe('cannot pin a buffer: it is on the host, and cannot come back in a capture; pin it before');
    expect(refusalOf(inFile)).toBe('cannot pin a buffer: it is in a file, and cannot come back in a capture; pin it before');
    const pin = there.pin(stream);
    expect([pin.isCaptured, noted, lastUse(there) === other]).toEqual([true, [stream], true]);
    // It is nothing that another use would follow, and may leave once it has ended.
    const order = vi.fn();
    expect(caught(() => there.use(pin, order))).toEqual(capturingError);
    expect(order).not.toHaveBeenCalled();
    expect(effects(() => there.unpin(pin))).toEqual([0, ['hold ended', 'may leave', 'idle']]);
    expect([there.isIdle, lastUse(there) === other]).toEqual([true, true]);
    stream.endCapture().dispose();
  });

  test('follows the last use, and is it from then on', () => {
    const memory = made();
    const order = vi.fn();
    const same = memory.beginPin(stream);
    memory.finishPin(same, order);
    expect([order.mock.calls, noted, lastUse(memory) === stream]).toEqual([[], [stream], true]);
    const pin = memory.beginPin(other);
    expect(memory.use(pin, order)).toBe(memory[memoryOf]);
    expect([order.mock.calls, lastUse(memory) === other]).toEqual([[[other, stream]], true]);
  });

  test('follows the last use by the same stream, if the object for that has been disposed', () => {
    const again = Stream.fromHandle(stream.nativeHandle);
    const memory = made({ on: again });
    const order = vi.fn();
    again.dispose();
    memory.use(memory.beginPin(stream), order);
    expect([order.mock.calls, lastUse(memory) === stream]).toEqual([[[stream, again]], true]);
  });

  test('follows all others, also those that ended in a capture, but none that is in one', () => {
    needCaptures(stream);
    const memory = made();
    const [third, captured, last] = [newStream(), newStream(), newStream()];
    const unsettled = memory.pin(captured);
    memory.pin(stream);
    memory.pin(other);
    const inCapture = newStream();
    for (const each of [captured, inCapture]) beginElsewhere(each);
    memory.pin(inCapture);
    memory.unpin(unsettled);
    const order = vi.fn();
    memory.finishPin(memory.beginPin(third), order);
    expect(order.mock.calls.map((pair) => pair.map(({ id }: Stream) => id))).toEqual(
      [
        [third, other],
        [third, stream],
        [third, other],
        [third, captured],
      ].map((pair) => pair.map(({ id }) => id)),
    );
    for (const each of [captured, inCapture]) endElsewhere(each);
    memory.pin(last);
    expect(lastUse(memory)).toBe(last);
  });
});

describe('the end of a pin', () => {
  test('leaves the last use on its stream, or makes that follow it', () => {
    const memory = made();
    const [first, second] = [memory.pin(stream), memory.pin(other)];
    expect(effects(() => memory.unpin(first))).toEqual([1, ['hold ended']]);
    expect(lastUse(memory)).toBe(other);
    expect(effects(() => memory.unpin(second))).toEqual([0, ['hold ended', 'may leave', 'idle']]);
    expect(lastUse(memory)).toBe(other);
    expect(effects(() => memory.unpin(first))).toEqual([0, []]);
  });

  test.each([true, false])('makes a stream of the adaptor follow one whose owner may end it: live %s', (live) => {
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    const memory = made();
    const pin = memory.pin(unannounced);
    isLive = live;
    memory.unpin(pin);
    // Without such a stream, the device has been waited for.
    expect(lastUse(memory)).toBe(live ? homeward : Stream.legacyDefault());
    unannounced.dispose();
    foreign.destroy();
  });

  test('is the last use although its stream has ended', () => {
    const memory = made();
    const pin = memory.pin(other);
    other.dispose();
    memory.unpin(pin);
    expect([memory.isPinned, lastUse(memory) === Stream.legacyDefault()]).toEqual([false, true]);
  });

  test('of what is empty orders nothing, and is in no graph', () => {
    needCaptures(stream);
    const memory = made({ bytes: 0 });
    const pins = [memory.pin(other), memory.pin(stream)];
    noted.splice(0);
    stream.beginCapture();
    expect(noted).toEqual([stream]);
    const [waits] = effects(() => pins.map((pin) => memory.unpin(pin)));
    stream.endCapture().dispose();
    expect([waits, noted]).toEqual([0, [stream]]);
  });

  test('whose stream is captured then is ordered when the capture has ended', () => {
    needCaptures(stream);
    const memory = made();
    const another = made();
    const ofAnother = [another.pin(stream), another.pin(other)];
    const [captured, last] = [memory.pin(stream), memory.pin(other)];
    stream.beginCapture();
    for (const pin of ofAnother) another.unpin(pin);
    noted.splice(0);
    expect(effects(() => memory.unpin(captured))).toEqual([0, ['hold ended']]);
    expect(noted).toEqual([stream]);
    // Not even the last one may leave until then.
    expect(effects(() => memory.unpin(last))).toEqual([0, ['hold ended', 'may leave']]);
    expect([memory.isIdle, caught(() => memory.dispose()), caught(() => memory.free())]).toEqual([false, capturingError, capturingError]);
    expect(effects(() => stream.endCapture().dispose())).toEqual([2, ['idle', 'idle']]);
    expect([another.isIdle, memory.isIdle, lastUse(memory) === other]).toEqual([true, true, true]);
    // It is no matter of later captures.
    expect(effects(() => stream.capture(() => {}).dispose())).toEqual([0, []]);
  });

  test('whose stream has the last use needs no order when the capture has ended', () => {
    needCaptures(stream);
    const memory = made();
    const pins = [memory.pin(other), memory.pin(stream)] as const;
    stream.beginCapture();
    expect(effects(() => memory.unpin(pins[1]))).toEqual([0, ['hold ended']]);
    expect(effects(() => stream.endCapture().dispose())).toEqual([0, []]);
    const only = made();
    const pin = only.pin(stream);
    stream.beginCapture();
    expect(effects(() => only.unpin(pin))).toEqual([0, ['hold ended', 'may leave', 'idle']]);
    stream.endCapture().dispose();
    // A pin that has ended is of no later capture.
    noted.splice(0);
    stream.capture(() => {}).dispose();
    expect([noted, memory.isIdle]).toEqual([[], false]);
  });

  describe('of which several are in captures of another library', () => {
    let memory: SpillableMemory;
    let captured: Stream[];
    beforeEach(() => {
      needCaptures(stream);
      memory = made();
      captured = [newStream(), newStream()];
      const pins = captured.map((each) => memory.pin(each));
      const last = memory.pin(other);
      for (const each of captured) beginElsewhere(each);
      for (const pin of [...pins, last]) memory.unpin(pin);
      expect(memory.isIdle).toBe(false);
    });

    test('is ordered as soon as it may be', () => {
      expect(effects(() => memory.settle())).toEqual([0, []]);
      for (const each of captured) endElsewhere(each);
      expect(effects(() => memory.settle())).toEqual([2, ['idle']]);
      expect(memory.isIdle).toBe(true);
    });

    test('is ordered once each, and stays until all are', () => {
      for (const each of captured) endElsewhere(each);
      failCall('cuStreamWaitEvent', 2, 999);
      expect(effects(() => memory.settle())).toEqual([2, []]);
      expect(memory.isIdle).toBe(false);
      expect(effects(() => memory.settle())).toEqual([1, ['idle']]);
    });

    test('is ordered although its stream has ended', () => {
      for (const each of captured) each.dispose();
      expect(effects(() => memory.settle())[1]).toEqual(['idle']);
    });

    test.each(['dispose', 'free'] as const)('is ordered before the memory is freed: %s', (by) => {
      for (const each of captured) endElsewhere(each);
      expect(effects(() => memory[by]())).toEqual([2, ['removed']]);
      expect([device.frees, memory.pointer]).toEqual([[other], 0]);
    });
  });
});

describe('a memory that is disposed', () => {
  test('is freed after all of its pins, which end', () => {
    const memory = made();
    const pins = [memory.pin(stream), memory.pin(other), memory.pin(newStream())];
    expect(effects(() => memory.dispose())).toEqual([2, ['removed', 'hold ended', 'hold ended', 'hold ended', 'may leave']]);
    expect([device.frees, pins.map((pin) => memory.hasPin(pin))]).toEqual([[streams.at(-1)], [false, false, false]]);
    expect(effects(() => memory.dispose())).toEqual([0, []]);
    for (const pin of pins) expect(effects(() => memory.cancelPin(pin))).toEqual([0, ['may leave']]);
  });

  test('is as it was if its resource refuses', () => {
    const memory = made();
    const pin = memory.pin(stream);
    device.onFree = () => {
      throw new RangeError('not now');
    };
    expect(caught(() => memory.dispose())).toMatchObject({ message: 'not now' });
    expect([memory.endReason, memory.hasPin(pin), memory.isOnDevice]).toEqual([undefined, true, true]);
    memory.dispose();
    expect([memory.endReason, memory.hasPin(pin)]).toEqual(['the buffer is already disposed', false]);
  });

  test('is not while it moves, and is not freed', () => {
    const memory = made();
    const errors: unknown[] = [];
    host.onAllocate = () => {
      errors.push(...[() => memory.dispose(), () => memory.free(), () => memory.beginPin(stream)].map((call) => caught(call)));
    };
    leave(memory);
    expect([errors, memory.isOnHost]).toEqual([[stateError, stateError, stateError], true]);
  });
});

test.each<[string, (found: () => void, memory: SpillableMemory) => unknown]>([
  [
    'takes memory of the host',
    (found, memory) => {
      host.onAllocate = found;
      leave(memory);
    },
  ],
  [
    'frees memory of the device',
    (found, memory) => {
      device.onFree = found;
      leave(memory);
    },
  ],
  [
    'takes memory of the device',
    (found, memory) => {
      leave(memory);
      device.onAllocate = found;
      memory.prefetch();
    },
  ],
  [
    'frees memory of the host',
    (found, memory) => {
      leave(memory);
      host.onFree = found;
      memory.prefetch();
    },
  ],
  [
    'takes memory of the device for what is in a file',
    async (found, memory) => {
      await intoFile(memory);
      device.onAllocate = found;
      memory.prefetch();
    },
  ],
])('a buffer that the collector finds unreachable while its move %s is freed in the end', async (_, during) => {
  const memory = made();
  let isFound = false;
  await during(() => {
    isFound = true;
    freeSoonerOrLater(memory);
  }, memory);
  for (const gates of [before, after]) gates.open();
  for (let turn = 0; turn < 3; turn++) await nextTurn();
  expect([isFound, memory.pointer, openFiles, told.filter((what) => what === 'removed')]).toEqual([true, 0, 0, ['removed']]);
  expect([device.frees.length, host.frees.length]).toEqual([device.allocations, host.allocations]);
});

test('memory that the collector frees is freed on the stream that it says', () => {
  const memory = made();
  memory.free(() => other);
  expect([device.frees, memory.pointer]).toEqual([[other], 0]);
});
