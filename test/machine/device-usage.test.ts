import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { describeUsers } from '../../src/budget/device-usage.js';
import { mailbox, native } from '../../src/driver/native.js';
import { nvmlUsage, useNvml } from '../../src/driver/nvml.js';
import { currentBackend, Device, GiB, MiB, Stream } from '../../src/index.js';
import { deviceUsage } from '../../src/machine/index.js';
import { code } from '../support/errors.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-nvml-'));
const library = join(folder, 'libnvidia-ml.so.1');
const source = fileURLToPath(new URL('nvml-stand-in.c', import.meta.url));
const { status } = spawnSync('cc', ['-shared', '-fPIC', '-o', library, source]);
afterAll(() => {
  useNvml('libnvidia-ml.so.1');
  rmSync(folder, { recursive: true });
});

const gpu = 'GPU-00112233-4455-6677-8899-aabbccddeeff';

describe.runIf(status === 0)('with NVML', () => {
  beforeEach(() => {
    // The stand-in reads the C library's environment, which is this one's.
    process.env['NVML_STAND_IN_PID'] = String(process.pid);
    useNvml(library);
  });

  test('a device tells who holds its memory, the largest first, and each process once', () => {
    const { totalBytes, freeBytes, usedBytes, users } = deviceUsage(gpu);
    expect([totalBytes, freeBytes, usedBytes]).toEqual([80 * GiB, 18 * GiB, 61 * GiB]);
    expect(users).toEqual([
      { pid: 4_000_000, name: undefined, bytes: 61 * GiB, isOwn: false },
      { pid: process.pid, name: expect.any(String), bytes: 2 * GiB, isOwn: true },
      { pid: 4_000_001, name: undefined, bytes: undefined, isOwn: false },
    ]);
    expect(describeUsers(users ?? [])).toMatch(
      /^process 4000000 holds 61 GiB, .+ \d+ \(this process\) holds 2 GiB, process 4000001 holds an unknown amount$/,
    );
  });

  test('a UUID without dashes finds a device or an instance, with more users than fit at first', () => {
    expect(nvmlUsage('00112233445566778899aabbccddeeff')?.totalBytes).toBe(80 * GiB);
    const instance = nvmlUsage('11111111222233334444555555555555');
    expect(instance?.processes).toHaveLength(100);
    expect(instance?.processes?.[99]).toEqual({ pid: 1_000_099, bytes: MiB });
    expect(describeUsers(deviceUsage('MIG-11111111-2222-3333-4444-555555555555').users ?? [])).toContain(', and 97 more');
  });

  test('the processes of a device may be a secret', () => {
    expect(deviceUsage('GPU-99999999-9999-9999-9999-999999999999')).toEqual({
      totalBytes: 10 * GiB,
      freeBytes: 9 * GiB,
      usedBytes: 61 * GiB,
      users: undefined,
    });
  });

  test('an unknown device is refused', () => {
    expect(() => deviceUsage('GPU-0')).toThrow('NVML does not know it');
    expect(() => deviceUsage(5 as never)).toThrow(code('ERR_INVALID_ARG_TYPE'));
  });
});

test('without NVML, it says so', () => {
  useNvml('/no/such/libnvidia-ml.so.1');
  expect(() => deviceUsage(gpu)).toThrow(/\/no\/such\/libnvidia-ml\.so\.1 cannot be used: /);
  expect(nvmlUsage(gpu)).toBeUndefined();
});

test.runIf(currentBackend() === 'software')('a software device has no other users', () => {
  expect(() => deviceUsage(Device.get())).toThrow(code('ERR_CISTERN_NOT_SUPPORTED'));
});

test('asking for the memory of a device that the process does not use leaves no context on it', () => {
  const device = Device.get(Device.count() - 1);
  const isInUse = () => {
    native().deviceIsInUse(device.index);
    return mailbox[1] === 1;
  };
  const { freeBytes, totalBytes } = device.memoryInfo();
  expect([freeBytes > 0, freeBytes <= totalBytes, isInUse()]).toEqual([true, true, false]);
  using stream = new Stream({ device });
  stream.synchronizeSync();
  expect(isInUse()).toBe(true);
  expect(device.memoryInfo().totalBytes).toBe(totalBytes);
});
