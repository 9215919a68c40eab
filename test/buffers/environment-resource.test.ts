import { describe, expect, test } from 'vitest';
import { GiB, MiB } from '../../src/index.js';
import { deviceMemory, needMemoryPools, needSecondDevice } from '../support/device-memory.js';
import { runModule } from '../support/run-module.js';

const program = `
import { currentResource, Device, DeviceBuffer, Stream } from 'cistern';
const chain = (resource) => resource === undefined ? [] : [[resource.constructor.name, resource.limitBytes ?? null], ...chain(resource.upstream)];
for (const index of [0, 1]) {
  try {
    const resource = currentResource(Device.get(index));
    new DeviceBuffer(1000, { stream: Stream.legacyDefault(Device.get(index)) }).dispose();
    console.log(JSON.stringify([...chain(resource), resource.device.index, currentResource(Device.get(index)) === resource]));
  } catch (error) {
    console.log(error.code + ': ' + error.message);
  }
}`;

/** The current resources that a process finds for two devices. */
function linesWith(environment: Record<string, string>): string[] {
  needSecondDevice();
  const { stdout, stderr } = runModule(program, {
    ...environment,
    ...deviceMemory(1024),
    CISTERN_SOFTWARE_DEVICES: '2',
  });
  expect(stderr).toBe('');
  return stdout.trimEnd().split('\n');
}

describe('the initial current resource', () => {
  test.each<[Record<string, string>, unknown[]]>([
    [{ CISTERN_RESOURCE: '', CISTERN_LIMIT: ' ' }, [['CudaMemoryResource', null]]],
    [
      { CISTERN_RESOURCE: 'statistics(pool(cuda-async, maximumBytes=25%, deallocationEvents=off))' },
      [
        ['StatisticsResourceAdaptor', null],
        ['PoolMemoryResource', null],
        ['CudaAsyncMemoryResource', null],
      ],
    ],
    [
      { CISTERN_LIMIT: '64MiB' },
      [
        ['LimitingResourceAdaptor', 64 * MiB],
        ['CudaMemoryResource', null],
      ],
    ],
    [
      { CISTERN_RESOURCE: 'pool(cuda)', CISTERN_LIMIT: '50%' },
      [
        ['LimitingResourceAdaptor', GiB / 2],
        ['PoolMemoryResource', null],
        ['CudaMemoryResource', null],
      ],
    ],
  ])('is what %j specify, once for each device', (environment, chain) => {
    if (/cuda-async/.test(JSON.stringify(environment))) needMemoryPools();
    expect(linesWith(environment)).toEqual([0, 1].map((index) => JSON.stringify([...chain, index, true])));
  });

  test.each([
    [{ CISTERN_RESOURCE: 'pol(cuda)' }, /^ERR_CISTERN_INVALID_SPECIFICATION: CISTERN_RESOURCE: there is no resource kind "pol"/],
    [
      { CISTERN_RESOURCE: 'pool(cuda)', CISTERN_LIMIT: 'half' },
      /^ERR_INVALID_ARG_VALUE: CISTERN_LIMIT must be a size such as 8GiB, or a share such as 50%, got "half"/,
    ],
    [{ CISTERN_LIMIT: '101%' }, /^ERR_INVALID_ARG_VALUE: CISTERN_LIMIT must be/],
  ])('is refused for %j', (environment, message) => {
    expect(linesWith(environment)[0]).toMatch(message);
  });
});
