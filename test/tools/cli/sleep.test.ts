import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { wholePackage } from '../../support/run-module.js';
import { runCistern } from './run-cistern.js';

const root = fileURLToPath(new URL('../../..', import.meta.url));
/** Fills a buffer, waits for a line, and prints what it reads. */
const program = `
  import { once } from 'node:events';
  import { CudaMemoryResource, DeviceBuffer, Stream } from '${wholePackage}';
  const buffer = new DeviceBuffer(1024, { resource: new CudaMemoryResource(), stream: new Stream() });
  buffer.fill(7);
  console.log('ready');
  await once(process.stdin, 'data');
  console.log(new Set(buffer.toHostSync()));
  process.stdin.destroy();
`;

describe.runIf(process.platform === 'linux')('cistern sleep and cistern wake', () => {
  test('put another process to sleep and wake it', async () => {
    const child = spawn(process.execPath, ['--input-type=module', '--eval', program], {
      cwd: root,
      env: { ...process.env, CISTERN_DEVICE: 'software' },
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const pid = String(child.pid);
    let output = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
    await expect.poll(() => output).toBe('ready\n');

    expect(await runCistern(['sleep', pid])).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(`^process ${pid} is asleep: returned all it had on devices in \\d+ ms\n$`),
      stderr: '',
    });
    const again = await runCistern(['sleep', pid, '--json']);
    expect(JSON.parse(again.stdout)).toMatchObject({ pid: child.pid, releasedBytes: 0 });
    // Its call of the driver waits.
    child.stdin.write('go on\n');
    const woken = await runCistern(['wake', pid]);
    expect(woken).toMatchObject({ code: 0, stderr: '' });
    expect(woken.stdout).toMatch(`process ${pid} is awake: took what it had on devices in `);
    await once(child, 'exit');
    expect(output).toBe('ready\nSet(1) { 7 }\n');
  });

  test('refuse what is no process that uses a device', async () => {
    expect(await runCistern(['sleep', 'nobody'])).toMatchObject({ code: 2, stdout: '' });
    expect(await runCistern(['sleep', String(2 ** 22 + 1)])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('pid must be the id of a process, got 4194305: there is none'),
    });
    const unused = await runCistern(['wake', String(process.ppid)]);
    expect([unused.code, unused.stdout]).toEqual([1, '']);
    expect(unused.stderr).toBe(`error: process ${process.ppid} did not change its state: the driver knows no use of a device by it\n`);
  });

  test('are possible, says cistern doctor', async () => {
    const { stdout } = await runCistern(['doctor', '--device', 'software']);
    expect(stdout).toMatch(/^sleep: +processes can sleep: cistern sleep PID$/m);
  });
});
