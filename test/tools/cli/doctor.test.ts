import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { runCistern } from './run-cistern.js';

describe('cistern doctor', () => {
  test('describes the software device', async () => {
    const { code, stdout, stderr } = await runCistern(['doctor', '--json', '--device', 'software'], undefined, {
      CISTERN_SOFTWARE_MEMORY: '2GiB',
      CISTERN_SOFTWARE_DEVICES: '2',
    });
    expect([code, stderr]).toEqual([0, '']);
    const diagnosis = JSON.parse(stdout);
    expect(diagnosis).toMatchObject({ node: process.version, backend: 'software', error: null });
    expect(diagnosis.addon).toMatch(/cistern\.node$/);
    expect(diagnosis.driverVersion, 'a version of the CUDA driver').toBeNull();
    expect(diagnosis.devices).toHaveLength(2);
    expect(diagnosis.devices[1]).toMatchObject({ index: 1, totalBytes: 2 ** 31, memoryPools: true, managedMemory: true });
  });

  test('prints the same as text, and why it is not CUDA', async () => {
    const { code, stdout, stderr } = await runCistern(['doctor', '--device', 'auto']);
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toMatch(/^node: +v\d+/m);
    expect(stdout).toMatch(/^addon: +.*cistern\.node$/m);
    expect(stdout).toMatch(/^device 0: +.* free$/m);
    if (/^backend: +software$/m.test(stdout)) {
      expect(stdout).toMatch(/^no CUDA: +\S/m);
      expect(stdout).not.toMatch(/driver: |compute capability/);
    } else expect(stdout).toMatch(/^driver: +CUDA \d+\.\d+$/m);
  });

  test('exits with 1 if the requested device is missing, and still prints what it knows', async () => {
    const { code, stdout, stderr } = await runCistern(['doctor', '--json', '--device', 'cuda']);
    const diagnosis = JSON.parse(stdout);
    if (diagnosis.backend === 'cuda') return;
    expect(code).toBe(1);
    expect(diagnosis).toMatchObject({ backend: null, devices: [], error: { code: 'ERR_CISTERN_DEVICE_UNAVAILABLE' } });
    expect(stderr).toBe(`error: ${diagnosis.error.message}\n`);
  });

  test('exits with 1 without an addon, and says how to get it', async () => {
    const { code, stdout, stderr } = await runCistern(['doctor'], undefined, { CISTERN_ADDON: '/nonexistent.node' });
    expect(code).toBe(1);
    expect(stdout).toMatch(/^addon: +not found$/m);
    expect(stderr).toMatch(/^error: the native addon of cistern cannot be loaded/);
  });

  test('prints every environment variable, and no secret', async () => {
    const variables = { CISTERN_LIMIT: ' 8GiB ', CISTERN_WATCH_TOKEN: 'secret', CISTERN_WATCH: '' };
    const { stdout } = await runCistern(['doctor', '--device', 'software', '--verbose'], undefined, variables);
    expect(stdout).toMatch(/^ {2}CISTERN_LIMIT +8GiB$/m);
    expect(stdout).toMatch(/^ {2}CISTERN_WATCH +no page \(default\)$/m);
    expect(stdout).toMatch(/^ {2}CISTERN_WATCH_TOKEN +set, not shown$/m);
    const { settings } = JSON.parse((await runCistern(['doctor', '--json', '--device', 'software'], undefined, variables)).stdout);
    expect(settings).toMatchObject({ CISTERN_LIMIT: '8GiB', CISTERN_WATCH_TOKEN: 'set, not shown', CISTERN_WATCH: null });
  });

  test('prints only the variables that are set, and suggests a name for those that it does not know', async () => {
    const variables = { CISTERN_LIMITS: '8GiB', CISTERN_SERVICE_HOST: '10.0.0.1', NO_COLOR: '1' };
    const { stdout } = await runCistern(['doctor', '--device', 'software'], undefined, variables);
    const [, listed = ''] = stdout.split(/^environment variables.*:\n/m);
    expect(listed).toMatch(/^ {2}CISTERN_LIMITS +unknown: did you mean CISTERN_LIMIT\?$/m);
    expect(listed).toMatch(/^ {2}CISTERN_SERVICE_HOST +unknown$/m);
    expect(listed).not.toMatch(/NO_COLOR|\(default\)/);
  });

  test('refuses a misspelt device in the environment', async () => {
    const { code, stderr } = await runCistern(['doctor'], undefined, { CISTERN_DEVICE: 'gpu' });
    expect(code).toBe(1);
    expect(stderr).toMatch(/CISTERN_DEVICE must be one of auto, cuda, software, got "gpu"/);
  });
});

describe('cistern', () => {
  test('prints its version', async () => {
    const { version } = JSON.parse(readFileSync('package.json', 'utf8'));
    expect(await runCistern(['--version'])).toEqual({ code: 0, signal: null, stdout: `${version}\n`, stderr: '' });
  });

  test('shows examples in its own help', async () => {
    const { code, stdout } = await runCistern(['--help']);
    expect(code).toBe(0);
    expect(stdout).toContain('\n  $ cistern fit trace.csv.gz');
  });

  test.each(['doctor', 'resources', 'replay', 'fit', 'generate', 'completion'])('shows examples in the help of %s', async (command) => {
    const { code, stdout, stderr } = await runCistern([command, '--help']);
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toContain(`\n  $ cistern ${command}`);
  });
});
