/** What the driver answers about memory of other processes, also where no program here can make it answer so. */
import { afterEach, describe, expect, test } from 'vitest';
import { interpose, mailbox, type NativeBinding, NativeStatus } from '../../src/driver/native.js';
import { Device, DriverError, Stream, UnsupportedError } from '../../src/index.js';
import {
  closeExport,
  closeImport,
  endExport,
  exportIsUsed,
  exportMemory,
  handleBytes,
  openImport,
  refreshExport,
  reopenExport,
} from '../../src/processes/process-memory.js';
import { needSecondDevice } from '../support/device-memory.js';
import { caught, code } from '../support/errors.js';

const [notReady, notSupported, illegalAddress, invalidDevice] = [600, 801, 700, 101];

afterEach(() => interpose());

/** Makes every call about memory of other processes give this answer; the values behind the status are 1. */
function answer(status: number, value = 1): void {
  Device.get();
  const give = () => {
    mailbox[0] = status;
    mailbox[1] = value;
  };
  const names = ['exportMemory', 'refreshExport', 'exportIsUsed', 'closeExport', 'reopenExport', 'endExport', 'closeImport'] as const;
  interpose(() => Object.fromEntries(names.map((name) => [name, give])) as Partial<NativeBinding>);
}

const range = { pointer: 2 ** 20, bytes: 256, byteLength: 100, alignment: 256 };
const exported = () => exportMemory(range, Stream.legacyDefault(), new Uint8Array(handleBytes));

describe('an export', () => {
  test('has its number, or none if the driver cannot share the memory', () => {
    answer(NativeStatus.success, 7);
    expect(exported()).toBe(7);
    answer(notSupported);
    expect(exported()).toBeUndefined();
  });

  test('is refused where processes share no memory, and if there are too many', () => {
    answer(NativeStatus.noProcessMemory);
    expect(exported).toThrow(
      new UnsupportedError(`cannot export a buffer: processes share memory on Linux only, and this is ${process.platform}`),
    );
    answer(NativeStatus.tooManyExports);
    expect(exported).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_INVALID_STATE',
        message: 'cannot export a buffer: this process already exports 65536 buffers',
      }),
    );
  });

  test('says whether it is used', () => {
    for (const [value, isTrue] of [
      [1, true],
      [0, false],
    ] as const) {
      answer(NativeStatus.success, value);
      expect(exportIsUsed(3)).toBe(isTrue);
      expect(closeExport(3, true)).toBe(isTrue);
    }
  });

  test.each<[string, () => unknown]>([
    ['export a buffer', exported],
    ['export a buffer', () => refreshExport(3, 100, Stream.legacyDefault())],
    ['look for users of a buffer', () => exportIsUsed(3)],
    ['close the export of a buffer', () => closeExport(3, false)],
    ['reopen the export of a buffer', () => reopenExport(3)],
    ['end the export of a buffer', () => endExport(3)],
  ])('tells what the driver refuses: %s', (operation, act) => {
    answer(illegalAddress);
    expect(act).toThrow(DriverError);
    expect(act).toThrow(`cannot ${operation}`);
  });
});

test('an import that a stream stalls, or that the driver refuses to unmap, is closed later', () => {
  answer(NativeStatus.success);
  expect(closeImport(1)).toBe(true);
  for (const status of [notReady, illegalAddress]) {
    answer(status);
    expect(closeImport(1)).toBe(false);
  }
});

test.each<[keyof typeof NativeStatus, number, string, string]>([
  ['foreignMessage', 0, 'ERR_CISTERN_FOREIGN_HANDLE', 'these 56 bytes are not a handle from an export; they begin with "0102030405060708"'],
  ['unknownVersion', 9, 'ERR_CISTERN_NOT_SUPPORTED', 'its handle has version 9, but this version of cistern reads only version 1'],
  ['otherBackend', 1, 'ERR_CISTERN_FOREIGN_HANDLE', 'it is memory of a software device, and this process uses DEVICE'],
  ['otherBackend', 2, 'ERR_CISTERN_FOREIGN_HANDLE', 'it is memory of a CUDA device, and this process uses DEVICE'],
  [
    'forbiddenProcess',
    41,
    'ERR_CISTERN_NOT_SUPPORTED',
    'the system does not let this process access process 41, which exported it; run both as the same user',
  ],
  ['noProcessMemory', 0, 'ERR_CISTERN_NOT_SUPPORTED', `processes share memory on Linux only, and this is ${process.platform}`],
  ['tooManyImporters', 41, 'ERR_CISTERN_INVALID_STATE', '64 processes already have memory of process 41 open'],
])('a handle that cannot be opened says why: %s', (status, first, code, message) => {
  const stream = Stream.legacyDefault();
  interpose(() => ({
    openImport: () => {
      mailbox[0] = NativeStatus[status];
      mailbox[1] = first;
    },
  }));
  const handle = Uint8Array.from({ length: handleBytes }, (_, i) => i + 1);
  expect(() => openImport(handle, stream)).toThrow(
    expect.objectContaining({ code, message: `cannot open a buffer: ${message.replace('DEVICE', stream.device.name)}` }),
  );
});

test('a stream of another device than the memory is refused by both names, and if the device is not known by the status', () => {
  needSecondDevice();
  using stream = new Stream({ device: Device.get(1) });
  const opened = (device: number) => {
    interpose(() => ({
      openImport: () => {
        mailbox[0] = invalidDevice;
        mailbox[5] = device;
      },
    }));
    return caught(() => openImport(new Uint8Array(handleBytes), stream));
  };
  expect(opened(0)).toEqual(code('ERR_INVALID_ARG_VALUE'));
  for (const device of [1, -1]) expect(opened(device)).toBeInstanceOf(DriverError);
});
