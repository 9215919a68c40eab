import { ArgumentTypeError, formatValue, LifetimeError, UnsupportedError } from '../basics/errors.js';
import { mailbox, NativeStatus, native } from '../driver/native.js';
import { check, notSupportedStatus } from '../driver/status.js';

/** DLPack's device types for cistern's kinds of memory. */
export const dlpackDeviceType = { host: 1, device: 2, 'pinned-host': 3, managed: 13 } as const;

/** The flag of a tensor that must not be written. */
export const readOnlyFlag = 1;
/** The flag of a tensor that was copied for its consumer. */
export const isCopiedFlag = 2;

const maximumDimensions = 64;

/** An array as DLPack describes it. */
export interface TensorDescription {
  readonly address: number;
  readonly deviceType: number;
  readonly deviceId: number;
  readonly code: number;
  readonly bits: number;
  readonly lanes: number;
  readonly byteOffset: number;
  readonly flags: number;
  readonly shape: readonly number[];
  /** In elements; `undefined` for C order without gaps. */
  readonly strides: readonly number[] | undefined;
  /** `undefined` for the unversioned structure. */
  readonly version: { readonly major: number; readonly minor: number } | undefined;
}

/**
 * Makes a capsule for an array.
 * @param released is called from the event loop once the consumer, or the collector, has called the
 * deleter; must not throw
 */
export function exportTensor(
  tensor: Omit<TensorDescription, 'version' | 'strides'> & { readonly strides: readonly number[] },
  isVersioned: boolean,
  released: () => void,
): object {
  const { address, deviceType, deviceId, code, bits, lanes, byteOffset, flags, shape, strides } = tensor;
  const capsule = native().exportTensor(
    address,
    deviceType,
    deviceId,
    code,
    bits,
    lanes,
    byteOffset,
    flags,
    isVersioned,
    Float64Array.from(shape),
    Float64Array.from(strides),
    released,
  );
  if (mailbox[0] === notSupportedStatus) throw new UnsupportedError('this runtime cannot tag externals, which DLPack capsules require');
  check('make a DLPack capsule');
  return capsule;
}

/**
 * Reads the tensor that a capsule describes, without consuming it.
 * @throws ArgumentTypeError if it is not a capsule; LifetimeError if it is already consumed;
 * UnsupportedError for a major version other than 1.
 */
export function inspectTensor(capsule: unknown): TensorDescription {
  const numbers = new Float64Array(2 * maximumDimensions);
  native().inspectTensor(capsule, numbers);
  checkCapsule(capsule);
  const cell = (index: number) => mailbox[index] as number;
  const version = cell(1) === 1 ? { major: cell(11), minor: cell(12) } : undefined;
  if (version !== undefined && version.major !== 1) {
    throw new UnsupportedError(`capsule must have a tensor of DLPack 1, got version ${version.major}.${version.minor}`);
  }
  const count = cell(5);
  if (count < 0 || count > maximumDimensions) {
    throw new UnsupportedError(`capsule must have a tensor with a shape of at most ${maximumDimensions} numbers, got ${count}`);
  }
  return {
    address: cell(2),
    deviceType: cell(3),
    deviceId: cell(4),
    code: cell(6),
    bits: cell(7),
    lanes: cell(8),
    byteOffset: cell(9),
    flags: cell(10),
    shape: Array.from(numbers.subarray(0, count)),
    strides: cell(13) === 1 ? Array.from(numbers.subarray(maximumDimensions, maximumDimensions + count)) : undefined,
    version,
  };
}

/**
 * Consumes a capsule.
 * @returns a function that calls the deleter, to be called once
 */
export function takeTensor(capsule: unknown): () => void {
  native().takeTensor(capsule);
  checkCapsule(capsule);
  const handle = mailbox[1] as number;
  return () => {
    native().releaseTensor(handle);
    check('release a DLPack tensor');
  };
}

function checkCapsule(capsule: unknown): void {
  if (mailbox[0] === NativeStatus.invalidArgument) {
    throw new ArgumentTypeError(`capsule must be a DLPack capsule, got ${formatValue(capsule)}`);
  }
  if (mailbox[0] === NativeStatus.staleHandle) {
    throw new LifetimeError('ERR_CISTERN_DISPOSED', 'cannot use a DLPack capsule: it is already consumed');
  }
  check('use a DLPack capsule');
}
