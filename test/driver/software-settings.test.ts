import { describe, expect, test } from 'vitest';
import { printed, runModule } from '../support/run-module.js';

/** No variable of the software device but these, and whatever `CISTERN_DEVICE` the tests run with. */
function environment(given: Readonly<Record<string, string>>): Record<string, string | undefined> {
  const none = ['MEMORY', 'DEVICES', 'PEERS', 'STRICT', 'FREES_WAIT', 'CONCURRENT_MANAGED', 'COHERENT', 'MIGRATION_NS'];
  return {
    ...Object.fromEntries(none.map((name) => [`CISTERN_SOFTWARE_${name}`, undefined])),
    CISTERN_DEVICE: 'software',
    ...given,
  };
}

const run = (text: string, given: Readonly<Record<string, string>>) => runModule(text, environment(given));

describe('the environment variables of the software device', () => {
  test.each([
    ['512MB', 512e6],
    ['1.5GiB', 1.5 * 2 ** 30],
    [' 3 MiB ', 3 * 2 ** 20],
    ['5242880', 5_242_880],
    ['2G', 2 ** 31],
  ])('CISTERN_SOFTWARE_MEMORY takes a size as specifications have it: %j', (CISTERN_SOFTWARE_MEMORY, bytes) => {
    const end = run("import { Device } from 'cistern'; console.log(Device.get(0).memoryInfo().totalBytes);", { CISTERN_SOFTWARE_MEMORY });
    expect(end).toEqual(printed(String(bytes)));
  });

  const show = `
    import { Device } from 'cistern';
    import { managedActivity } from 'cistern/machine';
    const device = Device.get(0);
    console.log(Device.count(), device.attribute('concurrentManagedAccess'), device.attribute('pageableMemoryAccessUsesHostPageTables'),
      Device.count() > 1 && device.canAccessPeer(Device.get(1)));
  `;

  test('are not set if they are empty', () => {
    const empty = Object.fromEntries(Object.keys(environment({})).map((name) => [name, '  ']));
    expect(run(show, { ...empty, CISTERN_DEVICE: 'software' })).toEqual(printed('1 1 0 false'));
  });

  test('may have spaces around them', () => {
    const spaced = {
      CISTERN_SOFTWARE_DEVICES: ' 2 ',
      CISTERN_SOFTWARE_PEERS: ' 0-1 ',
      CISTERN_SOFTWARE_COHERENT: '\t1',
    };
    expect(run(show, spaced)).toEqual(printed('2 1 1 true'));
    expect(run(show, { ...spaced, CISTERN_SOFTWARE_PEERS: 'none', CISTERN_SOFTWARE_CONCURRENT_MANAGED: ' 0' })).toEqual(
      printed('2 0 1 false'),
    );
  });

  test.each([
    ['MEMORY', 'much', 'a size such as 4GiB, up to 4TiB'],
    ['MEMORY', '0', 'a size such as 4GiB, up to 4TiB'],
    ['MEMORY', '9TiB', 'a size such as 4GiB, up to 4TiB'],
    ['MEMORY', '-1', 'a size such as 4GiB, up to 4TiB'],
    ['DEVICES', '0', 'an integer from 1 to 8'],
    ['DEVICES', '99', 'an integer from 1 to 8'],
    ['DEVICES', 'one', 'an integer from 1 to 8'],
    ['PEERS', '0-0', 'all, none, or pairs of different devices from 0 to 7 such as 0-1,2-3'],
    ['PEERS', '0-1,2', 'all, none, or pairs of different devices from 0 to 7 such as 0-1,2-3'],
    ['PEERS', '0-1,3-3', 'all, none, or pairs of different devices from 0 to 7 such as 0-1,2-3'],
    ['PEERS', '0-8', 'all, none, or pairs of different devices from 0 to 7 such as 0-1,2-3'],
    ['STRICT', 'true', '0 or 1'],
    ['FREES_WAIT', 'no', '0 or 1'],
    ['CONCURRENT_MANAGED', 'off', '0 or 1'],
    ['COHERENT', '2', '0 or 1'],
    ['MIGRATION_NS', '1ms', 'an integer from 0 to 10^15'],
    ['MIGRATION_NS', '10000000000000000', 'an integer from 0 to 10^15'],
  ])('CISTERN_SOFTWARE_%s is refused as %j', (name, value, expected) => {
    const program = `
      import { configureSoftwareDevice, Device } from 'cistern';
      for (const use of [() => Device.count(), () => configureSoftwareDevice({ devices: 1 })]) {
        try { use(); console.log('used'); } catch (error) { console.log(error.name, error.code, error.message); }
      }
    `;
    const line = `RangeError ERR_INVALID_ARG_VALUE CISTERN_SOFTWARE_${name} must be ${expected}, got "${value}"`;
    expect(run(program, { [`CISTERN_SOFTWARE_${name}`]: value })).toEqual(printed(line, line));
  });

  test('yield to what the program sets, and leave the rest', () => {
    const end = run(
      `
      import { configureSoftwareDevice, Device } from 'cistern';
      configureSoftwareDevice({ totalBytes: 2 ** 24, concurrentManagedAccess: true });
      const device = Device.get(0);
      console.log(Device.count(), device.memoryInfo().totalBytes, device.attribute('concurrentManagedAccess'), device.attribute('pageableMemoryAccessUsesHostPageTables'));
    `,
      {
        CISTERN_SOFTWARE_MEMORY: '32MiB',
        CISTERN_SOFTWARE_DEVICES: '3',
        CISTERN_SOFTWARE_CONCURRENT_MANAGED: '0',
        CISTERN_SOFTWARE_COHERENT: '1',
      },
    );
    expect(end).toEqual(printed(`3 ${2 ** 24} 1 1`));
  });

  test('are those of the first thread that uses the device', () => {
    const end = run(
      `
      import { once } from 'node:events';
      import { Worker } from 'node:worker_threads';
      import { configureSoftwareDevice, Device } from 'cistern';
      const show = "console.log(Device.count(), Device.get(0).memoryInfo().totalBytes, Device.get(0).attribute('concurrentManagedAccess'));";
      const text = "import('cistern').then(({ Device }) => {" + show + "});";
      const start = (added) => once(new Worker(text, { eval: true, env: { ...process.env, ...added } }), 'exit');
      await start({ CISTERN_SOFTWARE_DEVICES: '2', CISTERN_SOFTWARE_MEMORY: '8MiB', CISTERN_SOFTWARE_CONCURRENT_MANAGED: '0' });
      configureSoftwareDevice({ totalBytes: 2 ** 24 });
      await start({ CISTERN_SOFTWARE_DEVICES: '5', CISTERN_SOFTWARE_MEMORY: '32MiB' });
      console.log(Device.count(), Device.get(0).memoryInfo().totalBytes, Device.get(0).attribute('concurrentManagedAccess'));
    `,
      {},
    );
    expect(end).toEqual(printed(`2 ${2 ** 23} 0`, `2 ${2 ** 24} 0`, `2 ${2 ** 24} 0`));
  });
});
