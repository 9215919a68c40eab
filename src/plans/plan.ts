import { readFileSync } from 'node:fs';
import { ArgumentTypeError, formatValue } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT, isPowerOfTwo } from '../basics/units.js';
import { type Extent, Extents } from './extents.js';
import { type AllocationSequence, checkedColumn, checkedSequence, invalidPlan } from './sequence.js';

/**
 * The place of each allocation of a pass. `planAllocations` of `cistern/planning` makes plans, and
 * a {@link PlannedMemoryResource} serves from them. A plan is plain data: write it as JSON with
 * {@link formatPlan}, and read it with {@link parsePlan}.
 */
export interface Plan extends Omit<AllocationSequence, 'times'> {
  /** By allocation: the offset of its first byte, a multiple of `alignmentBytes`. */
  readonly offsets: ArrayLike<number>;
  /** A power of two, at least 256. Every offset is a multiple of it. */
  readonly alignmentBytes: number;
  /** The bytes that the plan needs in one piece. */
  readonly totalBytes: number;
  /**
   * The most bytes that are live at once, each allocation rounded up to the alignment. No plan
   * needs less.
   */
  readonly lowerBoundBytes: number;
  /** Whether no plan with a smaller total exists; `false` if unknown. */
  readonly isOptimal: boolean;
  /** The excess over the lower bound: 0.01 for one percent. */
  readonly gap: number;
}

/** @internal Serves nothing. */
export const noPlan: Plan = {
  operations: [],
  sizes: [],
  streams: [],
  freeStreams: [],
  offsets: [],
  alignmentBytes: ALLOCATION_ALIGNMENT,
  totalBytes: 0,
  lowerBoundBytes: 0,
  isOptimal: true,
  gap: 0,
};

/** The beginning of a plan file. */
const formatName = 'cistern plan';
const formatVersion = 1;

/** A plan of four million allocations is not as long. */
const mostCharacters = 2 ** 28;
/** A plan has an object and five lists; programs may have added fields of their own. */
const mostBrackets = 1000;

/**
 * A plan as JSON text, for {@link parsePlan}.
 * @example
 * ```ts
 * import { writeFileSync } from 'node:fs';
 *
 * const plan = planAllocations(await readAllocationLog('trace.csv.gz'));
 * writeFileSync('plan.json', formatPlan(plan));
 * ```
 */
export function formatPlan(plan: Plan): string {
  const { operations, sizes, streams, freeStreams, offsets, ...rest } = plan;
  const columns = { operations, sizes, streams, freeStreams, offsets };
  const arrays = Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, Array.from(column)]));
  return `${JSON.stringify({ format: formatName, version: formatVersion, ...rest, ...arrays })}\n`;
}

/**
 * Reads the text that {@link formatPlan} wrote, and checks it: two allocations that are live at the
 * same time on one stream never share bytes.
 * @param name the name of the text in errors
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) if the text is not a valid plan.
 */
export function parsePlan(text: string, name = 'the plan'): Plan {
  assertFlat(text, name);
  let read: unknown;
  try {
    read = JSON.parse(text);
  } catch (error) {
    throw invalidPlan(`${name} is not JSON`, { cause: error });
  }
  const { format, version, ...fields } = (read ?? {}) as Record<string, unknown>;
  if (format !== formatName) throw invalidPlan(`${name} is not a plan: its format is ${formatValue(format)}`);
  if (version !== formatVersion) throw invalidPlan(`${name} has version ${formatValue(version)}; this reads version 1`);
  return checkedPlan(fields as unknown as Plan, name);
}

/**
 * Checks that a text has no more lists and objects than a plan: each takes many times the memory of
 * its two characters.
 */
function assertFlat(text: string, name: string): void {
  if (text.length > mostCharacters) throw invalidPlan(`${name} has ${text.length} characters; a plan has at most ${mostCharacters}`);
  let count = 0;
  for (const bracket of ['[', '{']) {
    for (let at = text.indexOf(bracket); at >= 0; at = text.indexOf(bracket, at + 1)) {
      if (++count > mostBrackets) throw invalidPlan(`${name} is not a plan: it has more than ${mostBrackets} lists and objects`);
    }
  }
}

/**
 * A private copy of a plan, after checking it.
 * @internal
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) naming the allocation at fault.
 */
export function checkedPlan(plan: Plan, name = 'the plan'): Plan {
  if (typeof plan !== 'object' || plan === null) throw invalidPlan(`${name} is not an object`);
  const { alignmentBytes, totalBytes, lowerBoundBytes, isOptimal } = plan;
  for (const [field, value] of Object.entries({ alignmentBytes, totalBytes, lowerBoundBytes })) {
    if (!Number.isSafeInteger(value) || value < 0) throw invalidPlan(`${name} has no valid ${field}: ${formatValue(value)}`);
  }
  if (alignmentBytes < ALLOCATION_ALIGNMENT || !isPowerOfTwo(alignmentBytes)) {
    throw invalidPlan(`${name}: alignmentBytes must be a power of two of at least 256, got ${alignmentBytes}`);
  }
  if (lowerBoundBytes > totalBytes) {
    throw invalidPlan(`${name}: lowerBoundBytes is ${lowerBoundBytes}, which is more than totalBytes, ${totalBytes}`);
  }
  const { operations, sizes, streams, freeStreams } = checkedSequence(plan, name);
  const offsets = checkedColumn(plan.offsets, 'offsets', name);
  const gap = gapOf(totalBytes, lowerBoundBytes);
  const checked = {
    operations,
    sizes,
    streams,
    freeStreams,
    offsets,
    alignmentBytes,
    totalBytes,
    lowerBoundBytes,
    isOptimal: isOptimal === true,
    gap,
  };
  assertPlaces(checked, name);
  return checked;
}

/** How far a total is above its lower bound, as a fraction of the bound. */
export function gapOf(totalBytes: number, lowerBoundBytes: number): number {
  return lowerBoundBytes === 0 ? 0 : totalBytes / lowerBoundBytes - 1;
}

/**
 * Checks that no two allocations share bytes while both are live, in the order of the operations.
 * Order between streams cannot be checked here; the resource makes streams wait whenever memory
 * goes from one to another.
 */
function assertPlaces({ operations, sizes, offsets, alignmentBytes, totalBytes }: Plan, name: string): void {
  if (offsets.length !== sizes.length) throw invalidPlan(`${name} has ${sizes.length} sizes, but ${offsets.length} offsets`);
  const live = new Extents<Extent & { readonly number: number }>();
  for (let i = 0; i < operations.length; i++) {
    const operation = operations[i] as number;
    const number = operation < 0 ? ~operation : operation;
    const start = offsets[number] as number;
    const end = start + (sizes[number] as number);
    const place = { address: start, bytes: end - start, number };
    if (operation >= 0 && (start < 0 || start % alignmentBytes !== 0 || end > totalBytes)) {
      throw invalidPlan(`${name}: allocation ${number} is at ${start} to ${end}, which is outside the ${totalBytes} bytes or not aligned`);
    }
    const [overlapped] = live.cut(place);
    if (operation < 0) continue;
    if (overlapped !== undefined) {
      throw invalidPlan(`${name}: allocations ${overlapped.whole.number} and ${number} share bytes while both are live`);
    }
    live.insert(place);
  }
}

/**
 * The plan of a file.
 * @throws ArgumentTypeError if it is not a path; CisternError (`ERR_CISTERN_INVALID_PLAN`) if the
 * file cannot be read, or does not hold a valid plan.
 */
export function readPlan(path: string): Plan {
  // A number would be a file descriptor.
  if (typeof path !== 'string') throw new ArgumentTypeError(`plan must be the path of a file, got ${formatValue(path)}`);
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw invalidPlan(`the plan ${formatValue(path)} cannot be read: ${(error as NodeJS.ErrnoException).code}`, { cause: error });
  }
  return parsePlan(text, path);
}
