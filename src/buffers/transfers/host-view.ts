import { isTypedArray } from 'node:util/types';
import { ArgumentRangeError, ArgumentTypeError, CisternError, formatValue, UnsupportedError } from '../../basics/errors.js';
import { assertBytes, assertOneOf, optionNames } from '../../basics/validation.js';
import { accessFromHost } from '../../driver/memory/host-view.js';
import { type HasMemory, memoryOf } from '../buffer-memory.js';
import { hasConcurrentManagedAccess, kindOfMemory } from './buffer-transfer.js';
import { assertNoMemory } from './byte-range.js';

/** A class of typed arrays, such as `Float32Array`. */
export interface TypedArrayClass<T extends ArrayBufferView> {
  new (buffer: ArrayBuffer, byteOffset: number, length: number): T;
  readonly BYTES_PER_ELEMENT: number;
}

/** Options of {@link DeviceBuffer.hostView}. */
export interface HostViewOptions {
  /**
   * The start in the buffer, in bytes: a multiple of the size of an element.
   * @defaultValue 0
   */
  readonly byteOffset?: number | undefined;
  /**
   * The number of elements.
   * @defaultValue everything after `byteOffset`, which must then be a whole number of elements
   */
  readonly length?: number | undefined;
  /**
   * If the buffer's stream has unfinished work: `'wait'` blocks until that is done, `'refuse'`
   * throws.
   * @defaultValue `'wait'`
   */
  readonly whenBusy?: 'wait' | 'refuse' | undefined;
}

const optionsOfViews = optionNames<HostViewOptions>({ byteOffset: true, length: true, whenBusy: true });

/** Keeps a buffer alive as long as the host's array over its memory. */
const viewedBuffers = new WeakMap<ArrayBuffer, HasMemory>();

/** Does what `hostView` of a buffer says. */
export function hostView<T extends ArrayBufferView>(buffer: HasMemory, type: TypedArrayClass<T>, options: HostViewOptions): T {
  const operation = 'view a buffer from the host';
  const before = buffer[memoryOf];
  before.assertUsable(operation);
  assertNoMemory(options, optionsOfViews, 'options');
  const { whenBusy = 'wait' } = options;
  assertOneOf(whenBusy, ['wait', 'refuse'], 'whenBusy');
  viewRange(type, options, before.byteLength);
  const kind = kindOfMemory(before.pointer, before.resource);
  if (kind === 'device' || kind === 'unknown') {
    throw new UnsupportedError(
      `cannot ${operation}: the host cannot use ${kind === 'device' ? 'device' : 'this'} memory; copy it with toHost`,
    );
  }
  if (kind === 'managed' && !hasConcurrentManagedAccess(before.stream.device)) {
    throw new UnsupportedError(`cannot ${operation}: the device has no concurrent managed access; copy the memory with toHost`);
  }
  if (!before.stream.query()) {
    if (whenBusy === 'refuse') throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: its stream has unfinished work`);
    before.stream.synchronizeSync();
    // Host functions may have run, and changed the buffer.
    buffer[memoryOf].assertUsable(operation);
  }
  const memory = buffer[memoryOf];
  const { byteOffset, length } = viewRange(type, options, memory.byteLength);
  if (length === 0) return new type(new ArrayBuffer(0), 0, 0);
  const bytes = length * type.BYTES_PER_ELEMENT;
  const { array, byteOffset: start } = memory.hostArray(byteOffset, bytes);
  viewedBuffers.set(array, buffer);
  if (kind === 'managed') accessFromHost(memory.pointer + byteOffset, bytes, true);
  return new type(array, byteOffset - start, length);
}

/** The part of a buffer that a view of this class shows, in bytes and in elements. */
function viewRange(
  type: TypedArrayClass<ArrayBufferView>,
  { byteOffset = 0, length }: HostViewOptions,
  byteLength: number,
): { readonly byteOffset: number; readonly length: number } {
  if (!isTypedArrayClass(type)) {
    throw new ArgumentTypeError(`type must be a class of typed arrays, such as Float32Array, got ${formatValue(type)}`);
  }
  assertBytes(byteOffset, 'byteOffset');
  if (length !== undefined) assertBytes(length, 'length');
  const size = type.BYTES_PER_ELEMENT;
  const rest = byteLength - byteOffset;
  if (rest < 0) throw new ArgumentRangeError(`byteOffset must be at most ${byteLength}, the length of the buffer, got ${byteOffset}`);
  if (byteOffset % size !== 0) throw new ArgumentRangeError(`byteOffset must be a multiple of ${size}, got ${byteOffset}`);
  if (length === undefined && rest % size !== 0) {
    throw new ArgumentRangeError(`the ${rest} bytes after byteOffset must be a multiple of ${size} if no length is given`);
  }
  const elements = length === undefined ? rest / size : length;
  if (elements > rest / size) {
    throw new ArgumentRangeError(
      `${elements} elements of ${size} bytes from offset ${byteOffset} do not lie within the ${byteLength} bytes of the buffer`,
    );
  }
  return { byteOffset, length: elements };
}

/** Test runners that use contexts have classes of their own in each. */
function isTypedArrayClass(type: unknown): boolean {
  const prototype: unknown = typeof type === 'function' ? Object.getPrototypeOf(type) : undefined;
  return typeof prototype === 'function' && prototype.name === 'TypedArray' && isTypedArray(Reflect.construct(type as never, [0]));
}
