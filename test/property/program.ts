/** Programs: their parts, and their generation. */
import fc from 'fast-check';
import { type DeallocationEvents, type KindRole, MiB } from '../../src/index.js';
import { resourceKind } from '../../src/specification/kinds-by-name.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { exampleOf } from '../support/kind-stacks.js';
import type { LeafCall } from './probe.js';
import type { LayerPlan, LeafPlan, StackPlan } from './stack.js';

/** The kinds of streams that a program creates. */
export type StreamKind = 'non-blocking' | 'blocking' | 'announced' | 'unannounced' | 'legacy-default' | 'per-thread-default';

/** The operations on a buffer. */
type BufferStep =
  | 'write'
  | 'copy'
  | 'fill'
  | 'resize'
  | 'reserve'
  | 'shrink'
  | 'set-stream'
  | 'read'
  | 'read-later'
  | 'check'
  | 'keep'
  | 'dispose'
  | 'drop';

/**
 * One step of a program. Numbers of streams, allocations and so on are indexes into what exists at
 * that time, modulo its count: a program stays valid with any of its commands left out.
 */
export type Command =
  | {
      readonly do: 'allocate';
      readonly stream: number;
      /** In the program's `unitBytes`. */
      readonly units: number;
      /** Subtracted from that, in bytes. */
      readonly less: number;
      /** Ignored if a resource supports only the default alignment. */
      readonly alignment: number;
      /** Whether it is written at once. */
      readonly fills?: boolean;
      /** Whether it comes from the resource beside the stack, if there is one. */
      readonly isSide?: boolean;
    }
  | {
      readonly do: 'use';
      readonly allocation: number;
      readonly stream: number;
      /** A touch, or a driver call that writes. */
      readonly how: 'read' | 'write' | 'set';
      /**
       * How the stream is made to wait: always by an event, on the host, or by an event if it is
       * not yet ordered.
       */
      readonly by?: 'host' | 'known';
    }
  | {
      readonly do: 'free';
      /** -1 is the last one, and so on. */
      readonly allocation: number;
      /** If not set, the stream that it was allocated on. */
      readonly stream?: number | undefined;
      /** A number means an event that is recorded for it, … */
      readonly fence?: DeallocationEvents | number | undefined;
      /** … or was recorded earlier, if it covers every use; or one that is shared. */
      readonly how?: 'old' | 'shared' | undefined;
      readonly by?: 'known';
      /** How many allocations are freed together. */
      readonly count: number;
    }
  | { readonly do: 'record'; readonly event: number; readonly stream: number }
  | { readonly do: 'wait'; readonly event: number; readonly stream: number }
  | { readonly do: 'dispose-event'; readonly event: number }
  | { readonly do: 'synchronize'; readonly what: 'stream' | 'event' | 'device'; readonly which: number }
  | { readonly do: 'query'; readonly what: 'stream' | 'event'; readonly which: number }
  | { readonly do: 'hold'; readonly stream: number }
  | { readonly do: 'release'; readonly hold: number }
  | { readonly do: 'create'; readonly kind: StreamKind }
  | { readonly do: 'end'; readonly stream: number; readonly isUnannounced: boolean }
  | { readonly do: 'trim'; readonly layer: number; readonly stream: number; readonly units: number }
  | { readonly do: 'defragment' }
  | { readonly do: 'mark' }
  | { readonly do: 'rewind'; readonly mark: number; readonly to: 'mark' | 'reset' | 'release'; readonly frees: boolean }
  | { readonly do: 'scope'; readonly cache: number; readonly frees: boolean; readonly body: readonly Command[] }
  | { readonly do: 'keep'; readonly allocation: number }
  | { readonly do: 'buffer'; readonly stream: number; readonly bytes: number; readonly spare: number; readonly hasData: boolean }
  | {
      readonly do: 'buffer-step';
      readonly what: BufferStep;
      /** -1 is the last one, and so on. */
      readonly buffer: number;
      /** Another buffer, or a stream. */
      readonly other: number;
      readonly from: number;
      readonly bytes: number;
    }
  | { readonly do: 'collect' }
  | { readonly do: 'misuse'; readonly what: number; readonly allocation: number; readonly stream: number }
  | { readonly do: 'launch'; readonly stream: number; readonly body: readonly Command[]; readonly throws?: boolean }
  | { readonly do: 'interrupt'; readonly leaf: number; readonly call: LeafCall; readonly body: readonly Command[] };

/** A valid program: it makes all the waits that its order needs. */
export interface Program {
  readonly stack: StackPlan;
  /** The unit of sizes. */
  readonly unitBytes: number;
  /**
   * Whether the legacy default stream, on which resources take their first memory, is held from the
   * start.
   */
  readonly isDefaultHeld: boolean;
  /** The initial streams. */
  readonly streams: readonly StreamKind[];
  readonly commands: readonly Command[];
  /**
   * What precedes the disposal of the stack: everything is freed; the same, and all streams are
   * disposed; or the device is synchronized.
   */
  readonly ending: 'free' | 'end-streams' | 'synchronize';
}

const small = (maximum: number) => fc.nat({ max: maximum });
const policy = fc.constantFrom<DeallocationEvents>('eager', 'deferred', 'off');
const maybePolicy = fc.option(policy, { nil: undefined, freq: 1 });
const streamNumber = small(4);
const allocationNumber = small(15);
const eventNumber = small(5);

const weighted = <T>(...entries: [number, fc.Arbitrary<T>][]): fc.Arbitrary<T> =>
  fc.oneof(...entries.map(([weight, arbitrary]) => ({ weight, arbitrary })));

type CommandOf<Name extends Command['do']> = Extract<Command, { do: Name }>;

/** Commands of a kind. */
function command<Name extends Command['do']>(
  name: Name,
  fields: { [Key in Exclude<keyof CommandOf<Name>, 'do'>]-?: fc.Arbitrary<CommandOf<Name>[Key]> },
): fc.Arbitrary<Command> {
  return fc.record<object>({ do: fc.constant(name), ...fields }) as fc.Arbitrary<CommandOf<Name>>;
}

const allocate = command('allocate', {
  stream: streamNumber,
  units: weighted([10, small(8)], [1, small(20)]),
  less: weighted([2, fc.constant(0)], [1, small(300)]),
  alignment: weighted([8, fc.constant(256)], [1, fc.constantFrom(1, 512, 1024, 4096)]),
  fills: weighted([4, fc.constant(true)], [1, fc.constant(false)]),
  isSide: weighted([5, fc.constant(false)], [1, fc.constant(true)]),
});
/** How a wait is made if it may be unnecessary. */
const byWait = weighted<'known' | undefined>([1, fc.constant(undefined)], [1, fc.constant('known')]);
const use = command('use', {
  allocation: allocationNumber,
  stream: streamNumber,
  how: fc.constantFrom('read', 'write', 'set'),
  by: byWait as fc.Arbitrary<'host' | 'known'>,
});
const useAfterHost = use.map((each): Command => (each.do === 'use' ? { ...each, by: 'host' } : each));
const free = command('free', {
  allocation: allocationNumber,
  stream: weighted([3, fc.constant(undefined)], [2, streamNumber]),
  fence: weighted<DeallocationEvents | number | undefined>([4, fc.constant(undefined)], [1, policy], [4, eventNumber]),
  how: weighted<'old' | 'shared' | undefined>([4, fc.constant('old')], [1, fc.constantFrom('shared', undefined)]),
  by: byWait as fc.Arbitrary<'known'>,
  count: weighted([3, fc.constant(1)], [1, fc.integer({ min: 2, max: 6 })]),
});

const buffer = command('buffer', {
  stream: streamNumber,
  bytes: weighted([4, small(700)], [2, small(5000)], [1, small(40_000)]),
  spare: weighted([3, fc.constant(0)], [1, small(2000)]),
  hasData: fc.boolean(),
});
const bufferStep = command('buffer-step', {
  what: weighted<BufferStep>(
    [4, fc.constantFrom('write', 'copy', 'fill')],
    [3, fc.constantFrom('resize', 'reserve', 'shrink')],
    [1, fc.constant('set-stream')],
    [2, fc.constantFrom('check', 'check', 'check', 'read', 'read-later')],
    [1, fc.constant('keep')],
    [3, fc.constantFrom('dispose', 'dispose', 'drop')],
  ),
  buffer: small(5),
  other: small(5),
  from: small(700),
  bytes: weighted([3, small(700)], [1, small(5000)]),
});

/** Commands that are possible anywhere, even where a call is interrupted. */
const simple: [number, fc.Arbitrary<Command>][] = [
  [24, allocate],
  [8, use],
  [16, free],
  [4, buffer],
  [10, bufferStep],
  [5, command('record', { event: eventNumber, stream: streamNumber })],
  [4, command('wait', { event: eventNumber, stream: streamNumber })],
  [1, command('dispose-event', { event: eventNumber })],
  [1, command('query', { what: fc.constantFrom('stream', 'event'), which: streamNumber })],
  [
    1,
    command('create', {
      kind: weighted<StreamKind>(
        [4, fc.constant('non-blocking')],
        [1, fc.constantFrom('blocking', 'announced', 'unannounced', 'legacy-default', 'per-thread-default')],
      ),
    }),
  ],
  [2, command('end', { stream: streamNumber, isUnannounced: fc.boolean() })],
  [2, command('trim', { layer: small(4), stream: streamNumber, units: weighted([1, fc.constant(0)], [1, small(8)]) })],
  [1, fc.constant<Command>({ do: 'defragment' })],
];
const body = fc.array(fc.oneof(...simple.map(([weight, arbitrary]) => ({ weight, arbitrary }))), { minLength: 1, maxLength: 5 });
const stalling: [number, fc.Arbitrary<Command>][] = [
  [5, command('hold', { stream: streamNumber })],
  [2, command('release', { hold: small(3) })],
  [1, command('synchronize', { what: fc.constantFrom('stream', 'event', 'device'), which: streamNumber })],
  [1, useAfterHost],
  [2, command('launch', { stream: streamNumber, body, throws: weighted([7, fc.constant(false)], [1, fc.constant(true)]) })],
  [1, fc.constant<Command>({ do: 'collect' })],
  [3, command('misuse', { what: small(99), allocation: allocationNumber, stream: streamNumber })],
  [1, command('interrupt', { leaf: small(1), call: fc.constantFrom('allocate', 'deallocate'), body })],
];
const marking: [number, fc.Arbitrary<Command>][] = [
  [4, fc.constant<Command>({ do: 'mark' })],
  [
    4,
    command('rewind', {
      mark: small(3),
      to: weighted([8, fc.constant('mark')], [1, fc.constantFrom('reset', 'release')]),
      frees: fc.boolean(),
    }),
  ],
];
/**
 * Memory that changes hands with fences older than its stream's last wait. It is used and freed on
 * one stream; another stream gets it by an allocation or after the user's own wait, does not use
 * it, and frees it with an event that was recorded before; then a third stream takes it.
 */
const relay = fc
  .record({
    from: streamNumber,
    by: streamNumber,
    to: streamNumber,
    units: fc.integer({ min: 1, max: 8 }),
    event: eventNumber,
    isTaken: fc.boolean(),
  })
  .map(({ from, by, to, units, event, isTaken }): Command[] => {
    const allocation = { do: 'allocate', units, less: 0, alignment: 256, isSide: false } as const;
    return [
      { ...allocation, stream: from, fills: true },
      { do: 'free', allocation: -1, count: 1 },
      { do: 'record', event, stream: by },
      { ...allocation, stream: isTaken ? by : from, fills: false },
      { do: 'free', allocation: -1, stream: by, fence: event, how: 'old', count: 1 },
      { ...allocation, stream: to, fills: true },
    ];
  });

/**
 * The same, except that only the legacy default stream orders the second stream after the first, if
 * the streams are those of `legacyFirst`.
 */
const legacyRelay = fc
  .record({ units: fc.integer({ min: 1, max: 8 }), event: eventNumber, to: streamNumber })
  .map(({ units, event, to }): Command[] => {
    const allocation = { do: 'allocate', units, less: 0, alignment: 256, isSide: false } as const;
    return [
      { ...allocation, stream: 0, fills: true },
      { do: 'free', allocation: -1, count: 1 },
      { do: 'record', event, stream: 1 },
      { ...allocation, stream: 0, fills: false },
      { ...allocation, stream: 2, fills: true },
      { ...allocation, stream: 1, fills: true },
      { do: 'free', allocation: -3, stream: 1, fence: event, how: 'old', by: 'known', count: 1 },
      { ...allocation, stream: to, fills: true },
    ];
  });

/**
 * Two frees on one stream, the later with an event that is older than the other's; a second stream
 * takes the memory freed first.
 */
const twoFences = fc
  .record({ from: streamNumber, to: streamNumber, units: fc.integer({ min: 1, max: 8 }), event: eventNumber, fence: maybePolicy })
  .map(({ from, to, units, event, fence }): Command[] => {
    const allocation = { do: 'allocate', less: 0, alignment: 256, fills: true, isSide: false } as const;
    return [
      { ...allocation, units, stream: from },
      { do: 'record', event, stream: from },
      { ...allocation, units, stream: from },
      { do: 'free', allocation: -1, stream: from, fence, count: 1 },
      { do: 'free', allocation: -1, stream: from, fence: event, how: 'old', count: 1 },
      { ...allocation, units, stream: to },
      { ...allocation, units, stream: to },
    ];
  });

/** A copy between buffers on two streams, and then a use of its source on the source's stream. */
const copyAndUse = fc
  .record({
    from: streamNumber,
    to: streamNumber,
    bytes: fc.integer({ min: 1, max: 700 }),
    use: fc.constantFrom<BufferStep>('write', 'fill', 'dispose'),
  })
  .map(({ from, to, bytes, use: what }): Command[] => {
    const step = { do: 'buffer-step', other: -2, from: 0, bytes } as const;
    return [
      { do: 'buffer', stream: from, bytes, spare: 0, hasData: true },
      { do: 'buffer', stream: to, bytes, spare: 0, hasData: true },
      { ...step, what: 'copy', buffer: -1 },
      { ...step, what, buffer: -2 },
    ];
  });

/** A buffer that is used by an interruption of the call that moves it. */
const movedMeanwhile = fc
  .record({
    stream: streamNumber,
    bytes: fc.integer({ min: 1, max: 700 }),
    what: fc.constantFrom<BufferStep>('resize', 'write', 'fill', 'dispose', 'shrink'),
  })
  .map(({ stream, bytes, what }): Command[] => {
    const step = { do: 'buffer-step', buffer: -1, other: 0, from: 0 } as const;
    return [
      { do: 'buffer', stream, bytes, spare: 0, hasData: true },
      { do: 'interrupt', leaf: 0, call: 'allocate', body: [{ ...step, what, bytes: 2 * bytes }] },
      { ...step, what: 'resize', bytes: 5000 + bytes },
      { ...step, what: 'check', bytes },
    ];
  });

const commandsIn = (depth: number, maxLength: number): fc.Arbitrary<Command[]> => {
  const entries = [...simple, ...stalling, ...marking];
  entries.push([2, command('keep', { allocation: allocationNumber })]);
  if (depth < 2) entries.push([3, command('scope', { cache: small(1), frees: fc.boolean(), body: commandsIn(depth + 1, 12) })]);
  const one = fc.oneof(...entries.map(([weight, arbitrary]) => ({ weight, arbitrary })));
  const some = weighted<Command[]>(
    [60, one.map((each) => [each])],
    [1, relay],
    [1, legacyRelay],
    [1, twoFences],
    [1, copyAndUse],
    [1, movedMeanwhile],
  );
  return fc.array(some, { maxLength, size: 'max' }).map((parts) => parts.flat());
};

/** Capacities are in units of the program's allocations, so that memory sometimes runs out. */
interface Capacities {
  readonly unitBytes: number;
  readonly layers: readonly LayerCapacity[];
  readonly leaf: LeafPlan['kind'];
  readonly leafCapacity: number;
  readonly side: { readonly at: number; readonly layer: LayerCapacity } | undefined;
}

interface LayerCapacity {
  readonly kind: string;
  readonly capacity: number;
  /** Selects its options. */
  readonly choice: number;
  readonly events: DeallocationEvents | undefined;
}

/**
 * The kinds of a role, except for the one that collects garbage when memory runs out, as a program
 * collects at its own times, and the one that moves buffers then, which has programs of its own.
 */
const kindsOf = (role: KindRole) =>
  everyKind.filter((kind) => kind.role === role && !['reclaiming', 'spilling'].includes(kind.name)).map(({ name }) => name);

const examples = new Map(everyKind.map((kind) => [kind.name, exampleOf(kind)]));

const layerKinds = weighted<string>(
  [5, fc.constant('pool')],
  [5, fc.constantFrom(...kindsOf('pooling'))],
  [2, fc.constantFrom('arena', 'monotonic', 'caching')],
  [4, fc.constantFrom(...kindsOf('pass-through'))],
);
const layer = fc.record({ kind: layerKinds, capacity: fc.integer({ min: 1, max: 8 }), choice: small(5), events: maybePolicy });
const capacities = fc.record<Capacities>({
  unitBytes: fc.constantFrom(256, 256, 1000, 4096, 65_536, 262_144),
  layers: fc.array(layer, {
    minLength: 1,
    maxLength: 4,
  }),
  leaf: weighted<LeafPlan['kind']>(
    [6, fc.constant('cuda')],
    [6, fc.constant('cuda-async')],
    [1, fc.constantFrom('managed', 'pinned-host')],
  ),
  leafCapacity: small(6),
  side: fc.option(fc.record({ at: small(3), layer: layer }), { nil: undefined, freq: 1 }),
});

function stackOf({ unitBytes, layers, leaf, leafCapacity, side }: Capacities): StackPlan {
  const hasArena = layers.some(({ kind }) => kind === 'arena');
  const wholeBytes = hasArena ? Math.max(unitBytes * 8, 2 * MiB) : unitBytes * 8;
  return {
    leaf: { kind: leaf, ...(leafCapacity < 2 ? { limitBytes: wholeBytes * (leafCapacity === 0 ? 2 : 8) } : {}) },
    layers: layers.map((each) => planOf(each, unitBytes, leaf)),
    ...(side === undefined ? {} : { side: { at: sideOf(layers, side.at), layer: planOf(side.layer, unitBytes, leaf) } }),
  };
}

/** Not above a resource that takes memory back by itself, which the side would have to know of. */
function sideOf(layers: readonly LayerCapacity[], at: number): number {
  const first = layers.findIndex(({ kind }) => kind === 'monotonic' || kind === 'caching');
  return Math.min(at, layers.length - 1, first < 0 ? layers.length : first);
}

function planOf(layer: LayerCapacity, unitBytes: number, leaf: LeafPlan['kind']): LayerPlan {
  const { kind, capacity, choice, events } = layer;
  const most = capacity * 4 * unitBytes;
  const asked = events === undefined ? {} : { deallocationEvents: events };
  const of = (options: LayerPlan['options'], alternate?: LayerPlan['alternate']): LayerPlan => ({
    kind,
    options: { ...options, ...asked },
    ...(alternate === undefined ? {} : { alternate }),
  });
  const second = (option: string): LayerPlan['alternate'] => ({
    option,
    leaf: { kind: leaf === 'cuda' ? 'cuda-async' : leaf === 'cuda-async' ? 'cuda' : leaf, limitBytes: most },
  });
  switch (kind) {
    case 'pool':
      return of({
        ...(choice < 3 ? { maximumBytes: most } : {}),
        ...(choice % 2 === 0 ? { initialBytes: most } : {}),
        ...(choice % 3 === 0 ? { isQuick: true } : {}),
      });
    case 'arena':
      return of({ arenaBytes: Math.max(MiB, most) });
    case 'fixed-size':
      return of({
        blockBytes: unitBytes * (choice < 4 ? 8 : 4),
        blocksToPreallocate: choice % 3,
        ...(choice < 4 ? { maximumBytes: 2 * most + 8 * unitBytes } : {}),
      });
    case 'binning':
      return of({ bins: choice % 2 === 0 ? [2 * unitBytes, 4 * unitBytes] : [4 * unitBytes], blocksToPreallocate: choice % 3 });
    case 'monotonic':
      return choice === 0
        ? of({ initialBytes: unitBytes * 4, maximumBytes: most }, second('fallback'))
        : of({
            initialBytes: unitBytes * (choice % 2 === 0 ? 2 : 4),
            growthFactor: 1 + (choice % 2),
            ...(choice < 4 ? { maximumBytes: 2 * most } : {}),
          });
    case 'limiting':
      return of({ limitBytes: 2 * most });
    case 'aligned':
      return of({ alignment: choice < 3 ? 256 : 1024 });
    case 'rounding':
      return of(choice < 3 ? { kind: 'multiple', multipleBytes: 1000 } : { kind: 'divisions', divisions: 2 });
    default: {
      // As in the kind's example; a second resource is a leaf, like the first.
      const definitions = resourceKind(kind)?.options ?? {};
      const options = Object.entries(examples.get(kind)?.options ?? {});
      const branch = options.find(([name]) => definitions[name]?.type === 'resource');
      const own = Object.fromEntries(options.filter((option) => option !== branch)) as LayerPlan['options'];
      return of(own, branch && second(branch[0]));
    }
  }
}

const legacyFirst: StreamKind[] = ['blocking', 'blocking', 'legacy-default', 'non-blocking'];
const begins = fc.array(
  weighted<StreamKind>(
    [6, fc.constant('non-blocking')],
    [2, fc.constantFrom('blocking', 'announced', 'unannounced', 'legacy-default', 'per-thread-default')],
  ),
  { minLength: 1, maxLength: 4, size: 'max' },
);

/**
 * Random programs of up to a given number of commands, not counting those nested in others, over
 * random stacks.
 */
export function programs(maxLength = 50): fc.Arbitrary<Program> {
  return fc
    .record({
      capacities,
      isDefaultHeld: weighted([5, fc.constant(false)], [1, fc.constant(true)]),
      streams: weighted([5, begins], [1, fc.constant(legacyFirst)]),
      commands: commandsIn(0, maxLength),
      ending: fc.constantFrom<Program['ending']>('free', 'end-streams', 'synchronize'),
    })
    .map(({ capacities: each, ...rest }) => ({ stack: stackOf(each), unitBytes: each.unitBytes, ...rest }));
}
