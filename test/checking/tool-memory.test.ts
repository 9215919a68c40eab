/** What a memory checker is told, by a small library that writes it down. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { announceAllocations, announcePools, isToolListening } from '../../src/checking/index.js';
import { CudaMemoryResource } from '../../src/index.js';
import { type ProcessEnd, runModule, wholePackage } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-tool-'));
const library = join(folder, 'injection.so');
const log = join(folder, 'log');
let hasLibrary = false;

beforeAll(() => {
  const source = join(import.meta.dirname, 'injection.c');
  hasLibrary = process.platform === 'linux' && spawnSync('cc', ['-shared', '-fPIC', '-o', library, source]).status === 0;
});
afterAll(() => rmSync(folder, { recursive: true }));

function run(body: string, path: string): ProcessEnd {
  const module = `import { announceAllocations, announcePools, CudaMemoryResource, failCall, isToolListening, KiB, LimitingResourceAdaptor, MiB, PoolMemoryResource, Stream } from '${wholePackage}'; ${body}`;
  return runModule(module, { NVTX_INJECTION64_PATH: path, INJECTION_LOG: log });
}

test('without a tool, resources are returned as they are', () => {
  const upstream = new CudaMemoryResource();
  expect(isToolListening()).toBe(false);
  expect(announcePools(upstream)).toBe(upstream);
  expect(announceAllocations(upstream)).toBe(upstream);
  expect(() => announcePools({} as CudaMemoryResource)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
});

test('a tool is told of the memory of pools, and of what is allocated in it, with the size that was asked for', () => {
  if (!hasLibrary) skipTest('there is no C compiler, or this is not Linux');
  const end = run(
    `
    const stream = new Stream({ nonBlocking: true });
    const pool = new PoolMemoryResource(announcePools(new CudaMemoryResource()), { initialBytes: 1 * MiB, maximumBytes: 1 * MiB });
    const resource = announceAllocations(new LimitingResourceAdaptor(pool, { limitBytes: 1 * MiB }));
    const [first, second] = [resource.allocate(100, stream), resource.allocate(5 * KiB, stream)];
    resource.deallocate(first, 100, stream);
    const outside = announceAllocations(new CudaMemoryResource());
    outside.deallocate(outside.allocate(64, stream), 64, stream); // not of a pool that is announced
    resource.deallocate(resource.allocate(0, stream), 0, stream);
    try { resource.allocate(2 * MiB, stream); } catch (error) { console.log(error.code); }
    resource.deallocate(second, 5 * KiB, stream);
    pool.dispose();
    console.log(isToolListening(), first.toString(16), second.toString(16), String(resource));
  `,
    library,
  );
  expect(end).toMatchObject({ status: 0, stderr: '' });
  const [code, line] = end.stdout.trim().split('\n');
  const [isListening, first, second] = String(line).split(' ');
  expect([code, isListening]).toEqual(['ERR_CISTERN_OUT_OF_MEMORY', 'true']);
  expect(readFileSync(log, 'utf8').split('\n')).toEqual([
    `heap ${first} 1048576 1`,
    `region 1 ${first} 100 1`,
    `region 1 ${second} 5120 1`,
    `region ends ${first} 1`,
    `region ends ${second} 1`,
    'heap ends 1',
    '',
  ]);
});

test('memory of a pool ends before the driver has it, and begins again if the driver refuses it', () => {
  if (!hasLibrary) skipTest('there is no C compiler, or this is not Linux');
  const end = run(
    `
    const stream = new Stream({ nonBlocking: true });
    const upstream = announcePools(new CudaMemoryResource());
    const pointer = upstream.allocate(1 * MiB, stream);
    failCall('cuMemFree', 1, 999);
    try { upstream.deallocate(pointer, 1 * MiB, stream); } catch (error) { console.log(error.code); }
    upstream.deallocate(pointer, 1 * MiB, stream);
    console.log(pointer.toString(16));
  `,
    library,
  );
  expect(end).toMatchObject({ status: 0, stderr: '' });
  const [code, pointer] = end.stdout.trim().split('\n');
  expect(code).toBe('ERR_CISTERN_DRIVER');
  const lines = [1, 2].flatMap((number) => [`heap ${pointer} 1048576 1`, `heap ends ${number}`]);
  expect(readFileSync(log, 'utf8').trim().split('\n').slice(-4)).toEqual(lines);
});

test('a library that cannot be told is named in a warning, and the program runs on', () => {
  const end = run(`console.log(isToolListening(), isToolListening());`, join(folder, 'missing.so'));
  expect(end).toMatchObject({ status: 0, stdout: 'false false\n' });
  expect(end.stderr).toMatch(/\[CISTERN_TOOL_MEMORY\] Warning: no tool is told about the memory of pools: .*missing\.so/);
});
