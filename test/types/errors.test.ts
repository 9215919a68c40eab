import { describe, expect, expectTypeOf, test } from 'vitest';
import { OrderError, type OrderViolation, type OrderViolationSide } from '../../src/checking/index.js';
import {
  AddonMissingError,
  type ArgumentErrorCode,
  ArgumentRangeError,
  ArgumentTypeError,
  CisternError,
  type CisternErrorCode,
  DeviceUnavailableError,
  DriverError,
  FaultyResourceError,
  LifetimeError,
  NotAdmittedError,
  OutOfMemoryError,
  SpecificationError,
  UnsupportedError,
} from '../../src/index.js';

describe('the names and codes of errors', () => {
  test('are these', () => {
    expectTypeOf<ArgumentErrorCode>().toEqualTypeOf<'ERR_INVALID_ARG_TYPE' | 'ERR_INVALID_ARG_VALUE' | 'ERR_OUT_OF_RANGE'>();
    expectTypeOf<CisternErrorCode>().toEqualTypeOf<
      | 'ERR_CISTERN_OUT_OF_MEMORY'
      | 'ERR_CISTERN_NOT_ADMITTED'
      | 'ERR_CISTERN_DRIVER'
      | 'ERR_CISTERN_DISPOSED'
      | 'ERR_CISTERN_FOREIGN_POINTER'
      | 'ERR_CISTERN_DOUBLE_FREE'
      | 'ERR_CISTERN_WRONG_SIZE'
      | 'ERR_CISTERN_STALE_MESSAGE'
      | 'ERR_CISTERN_FOREIGN_MESSAGE'
      | 'ERR_CISTERN_STALE_HANDLE'
      | 'ERR_CISTERN_FOREIGN_HANDLE'
      | 'ERR_CISTERN_NO_PEER_ACCESS'
      | 'ERR_CISTERN_DEVICE_UNAVAILABLE'
      | 'ERR_CISTERN_ADDON_MISSING'
      | 'ERR_CISTERN_FAULTY_RESOURCE'
      | 'ERR_CISTERN_INVALID_STATE'
      | 'ERR_CISTERN_NOT_SUPPORTED'
      | 'ERR_CISTERN_INVALID_SPECIFICATION'
      | 'ERR_CISTERN_INVALID_LOG'
      | 'ERR_CISTERN_LOG_WRITE'
      | 'ERR_CISTERN_ORDER'
      | 'ERR_CISTERN_CAPTURING'
      | 'ERR_CISTERN_ASLEEP'
      | 'ERR_CISTERN_PROCESS_SLEEP'
      | 'ERR_CISTERN_READ_ONLY'
      | 'ERR_CISTERN_KEEP_UNAVAILABLE'
      | 'ERR_CISTERN_REGION_IN_USE'
      | 'ERR_CISTERN_REGION_MISMATCH'
      | 'ERR_CISTERN_SPILL_FILE'
      | 'ERR_CISTERN_INVALID_PLAN'
      | 'ERR_CISTERN_PLAN_DEVIATION'
      | 'ERR_CISTERN_REPLAY'
    >();
  });

  const details = { requestedBytes: 8, path: ['pool', 'device'] };
  const side: OrderViolationSide = { operation: 'set', access: 'write', streamId: 1, pointer: 0, bytes: 8, number: 1, stack: undefined };
  const report: OrderViolation = { kind: 'unordered', pointer: 0, bytes: 8, earlier: side, later: side, missing: 'a wait' };
  test.each([
    [new ArgumentTypeError('a'), 'TypeError', 'ERR_INVALID_ARG_TYPE', TypeError],
    [new ArgumentRangeError('a'), 'RangeError', 'ERR_OUT_OF_RANGE', RangeError],
    [new ArgumentRangeError('a', 'ERR_INVALID_ARG_VALUE'), 'RangeError', 'ERR_INVALID_ARG_VALUE', RangeError],
    [new CisternError('ERR_CISTERN_INVALID_STATE', 'a'), 'CisternError', 'ERR_CISTERN_INVALID_STATE', CisternError],
    [
      new NotAdmittedError('a', { reason: 'timeout', requestedBytes: 8, limitBytes: 9 }),
      'NotAdmittedError',
      'ERR_CISTERN_NOT_ADMITTED',
      CisternError,
    ],
    [new OutOfMemoryError('a', details), 'OutOfMemoryError', 'ERR_CISTERN_OUT_OF_MEMORY', CisternError],
    [new DriverError('copy', 'CUDA_ERROR_UNKNOWN', 999, 'an internal error'), 'DriverError', 'ERR_CISTERN_DRIVER', CisternError],
    [new FaultyResourceError('Mine', undefined, 'returned undefined'), 'FaultyResourceError', 'ERR_CISTERN_FAULTY_RESOURCE', CisternError],
    [new LifetimeError('ERR_CISTERN_DISPOSED', 'a'), 'LifetimeError', 'ERR_CISTERN_DISPOSED', CisternError],
    [new OrderError(report), 'OrderError', 'ERR_CISTERN_ORDER', CisternError],
    [new DeviceUnavailableError('a'), 'DeviceUnavailableError', 'ERR_CISTERN_DEVICE_UNAVAILABLE', CisternError],
    [new UnsupportedError('a'), 'UnsupportedError', 'ERR_CISTERN_NOT_SUPPORTED', CisternError],
    [new AddonMissingError('/root', new Error('b')), 'AddonMissingError', 'ERR_CISTERN_ADDON_MISSING', CisternError],
  ] as const)('hold for %s', (error, name, code, type) => {
    expect(error.name).toBe(name);
    expect(error.code).toBe(code);
    expect(error).toBeInstanceOf(type);
    expect(error).toBeInstanceOf(Error);
  });
});

describe('OutOfMemoryError', () => {
  test('has details that are undefined if unknown', () => {
    const error = new OutOfMemoryError('nothing is left', { requestedBytes: 8, path: ['device'] });
    expectTypeOf(error.availableBytes).toEqualTypeOf<number | undefined>();
    expectTypeOf(error.limitBytes).toEqualTypeOf<number | undefined>();
    expectTypeOf(error.path).toEqualTypeOf<readonly string[]>();
    expect(error).toMatchObject({ requestedBytes: 8, availableBytes: undefined, limitBytes: undefined, path: ['device'] });
  });

  test('gains the names of the resources that it passes through, outer to inner', () => {
    const error = new OutOfMemoryError('nothing is left', { requestedBytes: 8, path: ['device'] });
    expect(error.through('pool')).toBe(error);
    error.through('limit');
    expect(error.path).toEqual(['limit', 'pool', 'device']);
    expect(Object.isFrozen(error.path)).toBe(true);
  });
});

test('LifetimeError and DriverError have codes and fields of their own types', () => {
  expectTypeOf<ConstructorParameters<typeof LifetimeError>[0]>().toEqualTypeOf<
    | 'ERR_CISTERN_DISPOSED'
    | 'ERR_CISTERN_FOREIGN_POINTER'
    | 'ERR_CISTERN_DOUBLE_FREE'
    | 'ERR_CISTERN_WRONG_SIZE'
    | 'ERR_CISTERN_STALE_MESSAGE'
    | 'ERR_CISTERN_FOREIGN_MESSAGE'
    | 'ERR_CISTERN_STALE_HANDLE'
    | 'ERR_CISTERN_FOREIGN_HANDLE'
  >();
  expectTypeOf<DriverError>().toHaveProperty('driverStatus').toEqualTypeOf<number>();
  expectTypeOf<DriverError>().toHaveProperty('driverName').toEqualTypeOf<string>();
  expectTypeOf<DriverError>().toHaveProperty('operation').toEqualTypeOf<string>();
  expectTypeOf<CisternError>().toHaveProperty('code').toEqualTypeOf<CisternErrorCode>();
});

test('SpecificationError has a place in a text or a path in an object, never both', () => {
  const inText = new SpecificationError('a', { specification: 'pool(cud)', position: 5, length: 3, expected: ['cuda'] });
  expect(inText).toMatchObject({ message: 'a\n  pool(cud)\n       ^^^', position: 5, length: 3, path: undefined, expected: ['cuda'] });
  const inObject = new SpecificationError('a', { path: 'upstream.kind', expected: [] });
  expect(inObject).toMatchObject({ message: 'at upstream.kind: a', specification: undefined, path: 'upstream.kind', expected: [] });
  expectTypeOf<SpecificationError['position']>().toEqualTypeOf<number | undefined>();
  expectTypeOf<{ expected: []; path: string }>().toExtend<ConstructorParameters<typeof SpecificationError>[1]>();
  expectTypeOf<{ expected: []; specification: string }>().not.toExtend<ConstructorParameters<typeof SpecificationError>[1]>();
});
