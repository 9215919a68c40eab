import { formatSanitizerViolation, SanitizingResourceAdaptor } from '../../src/checking/index.js';
import {
  type CachingMemoryResource,
  CallbackMemoryResource,
  createResourceStack,
  type DeallocationEvents,
  FailureCallbackResourceAdaptor,
  GiB,
  type KindRole,
  type MemoryResource,
  MiB,
  parseSpecification,
  type ResourceStack,
  type Specification,
} from '../../src/index.js';
import { resourceKind } from '../../src/specification/kinds-by-name.js';
import { everyKind } from '../../src/tools/every-kind.js';
import type { ResourceHarness, ResourceSupport } from '../../src/tools/testing/index.js';
import { InRunResource } from '../support/in-run-resource.js';
import { stacksOf } from '../support/kind-stacks.js';

type Options = Readonly<Record<string, number>>;

/** The claims of a leaf, unless its kind has others. */
const leastSupport: ResourceSupport = { maximumAlignment: 256, streamOrdered: false };

/**
 * Claims that differ from those of the resource's role. By its role, a leaf claims the least; one
 * that keeps memory claims stream order, and reuse unless its policy is `'off'`; one that passes
 * calls on claims what its upstream claims.
 */
const claims: Readonly<Record<string, (options: Options, below: ResourceSupport) => { [Name in keyof ResourceSupport]?: unknown }>> = {
  'cuda-async': () => ({ streamOrdered: true }),
  'managed-async': () => ({ streamOrdered: true }),
  'pinned-async': () => ({ streamOrdered: true }),
  host: () => ({ maximumAlignment: GiB }),
  'global-arena': ({ arenaBytes }) => ({ maximumAlignment: MiB, streamOrdered: true, capacityBytes: arenaBytes }),
  'thread-safe-arena': ({ arenaBytes }) => ({ maximumAlignment: MiB, streamOrdered: true, capacityBytes: arenaBytes }),
  virtual: () => ({ maximumAlignment: 2 * MiB }),
  // Blocks taken one by one are not in one piece.
  pool: ({ initialBytes, maximumBytes }) => ({
    maximumAlignment: Number.POSITIVE_INFINITY,
    capacityBytes: maximumBytes,
    ...(initialBytes === maximumBytes ? {} : { reusesAcrossStreams: false }),
  }),
  arena: ({ arenaBytes }) => ({ maximumAlignment: Number.POSITIVE_INFINITY, capacityBytes: arenaBytes }),
  monotonic: ({ maximumBytes }) => ({
    maximumAlignment: Number.POSITIVE_INFINITY,
    reusesAcrossStreams: false,
    reusesFreedMemory: false,
    checksFrees: false,
    capacityBytes: maximumBytes,
  }),
  // Requests that fit into no bin come from below.
  binning: (_options, { capacityBytes }) => ({ capacityBytes }),
  // Outside its runs it passes calls on.
  caching: (_options, below) => ({ reusesAcrossStreams: false, ...below }),
  // What is not in the plan comes from below.
  planned: (_options, below) => ({ reusesAcrossStreams: false, ...below }),
  limiting: ({ limitBytes }) => ({ capacityBytes: limitBytes }),
  aligned: () => ({ maximumAlignment: GiB }),
  // When memory runs out, it waits for the device before it fails.
  reclaiming: () => ({ reusesAcrossStreams: false }),
  // Nearly everything comes from the second resource.
  fallback: ({ fallback }) => ({ capacityBytes: undefined, ...supportOf(fallback as unknown as Specification) }),
};

/** @param asked the policy that a resource above passes on */
function supportOf({ kind, upstream, options = {} }: Specification, asked?: unknown): ResourceSupport {
  const definition = resourceKind(kind);
  const policy = asked ?? options['deallocationEvents'];
  const below = upstream === undefined ? leastSupport : supportOf(upstream, policy);
  const reusesAcrossStreams = (policy ?? definition?.options['deallocationEvents']?.default) !== 'off';
  const byRole = definition?.role === 'pooling' ? { ...leastSupport, streamOrdered: true, reusesAcrossStreams } : below;
  const all = { ...byRole, ...claims[kind]?.(options as Options, below) };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as unknown as ResourceSupport;
}

/** @param wrap adds to the stack what no specification describes */
function harness(specification: string, wrap?: (resource: MemoryResource) => MemoryResource): ResourceHarness {
  const create = () => {
    const stack = createResourceStack(specification);
    return { resource: wrap?.(stack.resource) ?? stack.resource, dispose: () => disposeWithoutViolations(stack) };
  };
  return { name: specification, create, supports: supportOf(parseSpecification(specification)) };
}

/** Fails if the suite, or a resource below that checks stream order, found a violation. */
function disposeWithoutViolations(stack: ResourceStack): void {
  stack.dispose();
  const sanitizers = stack.layers.filter((layer) => layer instanceof SanitizingResourceAdaptor);
  const reports = sanitizers.flatMap((sanitizer) => sanitizer.violations.filter((report) => 'missing' in report));
  if (reports.length > 0) throw new Error(reports.map(formatSanitizerViolation).join('\n'));
}

/** Stacks that combine kinds, or in which a kind has other options than in its example. */
const compositions: Readonly<Record<KindRole, readonly string[]>> = {
  upstream: ['pinned-host(populateThreads=2)'],
  'pass-through': [
    'aligned(limiting(cuda, limitBytes=64MiB))',
    'fallback(limiting(cuda, limitBytes=64KiB), fallback=limiting(cuda, limitBytes=64MiB))',
    'fallback(limiting(cuda-async, limitBytes=64KiB), fallback=limiting(cuda-async, limitBytes=64MiB))',
    'reclaiming(limiting(cuda, limitBytes=64MiB))',
    'reclaiming(limiting(cuda-async, limitBytes=64MiB))',
    'recording(recording(cuda-async, file=/dev/null), file=/dev/null)',
    'tracking(rounding(cuda-async, kind=divisions, divisions=2))',
    'tracking(rounding(cuda-async, kind=top-bits, bits=4))',
  ],
  pooling: (['eager', 'deferred', 'off'] as const).flatMap((events) => {
    const pool = `pool(cuda, initialBytes=64MiB, maximumBytes=64MiB, deallocationEvents=${events})`;
    const other = events === 'eager' ? 'deferred' : 'eager';
    return [
      pool,
      `pool(cuda-async, initialBytes=64MiB, maximumBytes=64MiB, deallocationEvents=${events})`,
      `pool(global-arena(arenaBytes=64MiB), maximumBytes=64MiB, deallocationEvents=${events})`,
      `statistics(pool(cuda, initialBytes=64MiB, maximumBytes=64MiB, deallocationEvents=${other}), deallocationEvents=${events})`,
      `aligned(${pool}, alignment=4KiB)`,
      `sanitizing(pool(sanitizing(cuda), initialBytes=64MiB, maximumBytes=64MiB, deallocationEvents=${events}), stacks=false)`,
      `reclaiming(${pool})`,
      `binning(pool(cuda, initialBytes=64MiB, maximumBytes=64MiB), minimumExponent=10, maximumExponent=16, deallocationEvents=${events})`,
      `caching(limiting(cuda, limitBytes=64MiB), deallocationEvents=${events})`,
      `caching(limiting(cuda-async, limitBytes=64MiB), deallocationEvents=${events})`,
    ];
  }),
};

/** Sizes that round to the same size cannot be told apart below, so frees are checked above. */
function checked(specification: string): string {
  return specification.startsWith('rounding(') ? `tracking(${specification})` : specification;
}

/** Every kind of a role, and its stacks. */
export function harnessesOf(role: KindRole): ResourceHarness[] {
  const stacks = everyKind.filter((kind) => kind.role === role).flatMap(stacksOf);
  return [...[...stacks.map(checked), ...compositions[role]].map((stack) => harness(stack)), ...othersOf(role)];
}

/** Resources that a specification cannot describe. */
function othersOf(role: KindRole): ResourceHarness[] {
  if (role === 'upstream') return ['cuda', 'cuda-async'].map(withFunctions);
  if (role === 'pass-through') return ['limiting(cuda, limitBytes=64MiB)', 'cuda-async'].map(withFailureCallback);
  return (['eager', 'deferred', 'off'] as const).flatMap((events) => ['cuda', 'cuda-async'].map((leaf) => inRun(leaf, events)));
}

function withFunctions(specification: string): ResourceHarness {
  const wrap = (upstream: MemoryResource) =>
    new CallbackMemoryResource(upstream.allocate.bind(upstream), upstream.deallocate.bind(upstream), { memoryKind: upstream.memoryKind });
  return { ...harness(specification, wrap), name: `callback(${specification})` };
}

function withFailureCallback(specification: string): ResourceHarness {
  const wrap = (upstream: MemoryResource) => {
    let calls = 0;
    return new FailureCallbackResourceAdaptor(upstream, () => ++calls % 2 === 1);
  };
  return { ...harness(specification, wrap), name: `failure-callback(${specification})` };
}

/** A cache inside a run. */
function inRun(leaf: string, events: DeallocationEvents): ResourceHarness {
  const specification = `caching(limiting(${leaf}, limitBytes=64MiB), deallocationEvents=${events})`;
  const { create, supports } = harness(specification, (cache) => new InRunResource(cache as CachingMemoryResource));
  // Without memory of the requested size, it gives some back to the driver, and then waits for the
  // device.
  const reusesAcrossStreams = leaf === 'cuda-async' && events !== 'off';
  return { name: `a run of ${specification}`, create, supports: { ...supports, streamOrdered: true, reusesAcrossStreams } };
}
