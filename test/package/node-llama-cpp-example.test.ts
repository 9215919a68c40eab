import { execFile } from 'node:child_process';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { beforeEach, describe, expect, test } from 'vitest';
import { resultOrNothing } from '../../src/basics/errors.js';
import { inFolder, outside, outsideProgram, readOutside, runOutside } from '../tools/outside/outside.js';

const folder = new URL('../../examples/node-llama-cpp/', import.meta.url);
/** `npm install --no-save --ignore-scripts node-llama-cpp`, or LLAMA_PACKAGE=/path/to/node-llama-cpp. */
const installed =
  process.env['LLAMA_PACKAGE'] ?? resultOrNothing(() => join(createRequire(import.meta.url).resolve('node-llama-cpp/package.json'), '..'));

const mib = 2 ** 20;
const prelude = `
  import { CudaMemoryResource, Stream } from 'cistern';
  import { AdmittingResourceAdaptor } from 'cistern/serving';
  import { SharedLimitOrchestrator } from ${JSON.stringify(new URL('orchestrator.js', folder).href)};
  const mib = 2 ** 20;
  const limit = { limitBytes: 100 * mib, shared: 'gpu' };
  const resource = new AdmittingResourceAdaptor(new CudaMemoryResource(), limit);
  const stream = new Stream();
  const device = { free: 1000 * mib, total: 1024 * mib, unifiedSize: 0 };
  const orchestrator = new SharedLimitOrchestrator({ ...limit, readDevice: () => device });
  const free = async () => (await orchestrator.getMemoryState()).free / mib;
  const committed = () => resource.statistics().committedBytes / mib;
  const results = [];
`;

/** Runs a module, and returns what it has put into `results`. */
async function results(text: string): Promise<unknown> {
  const program = `${prelude}${text}\nconsole.log(JSON.stringify(results));`;
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', program], {
    env: { ...process.env, CISTERN_DEVICE: 'software' },
    timeout: 100_000,
  });
  return JSON.parse(stdout);
}

describe("the orchestrator of examples/node-llama-cpp, and cistern's buffers", () => {
  test('share one limit', async () => {
    const text = `
      const pointer = resource.allocate(30 * mib, stream);
      results.push(await free());
      const reservation = orchestrator.reserveMemory(60 * mib);
      results.push(await free(), committed());
      try { resource.allocate(20 * mib, stream); } catch ({ code }) { results.push(code); }
      try { orchestrator.reserveMemory(20 * mib); } catch ({ code }) { results.push(code); }
      reservation.dispose(); reservation.dispose();
      resource.deallocate(pointer, 30 * mib, stream);
      results.push(await free(), committed(), reservation.disposed);
    `;
    const refused = 'ERR_CISTERN_OUT_OF_MEMORY';
    expect(await results(text)).toEqual([70, 10, 90, refused, refused, 100, 0, true]);
  });

  test('what is loaded takes over what was reserved for it', async () => {
    const text = `
      let releases = 0;
      orchestrator.onMemoryReservationRelease.createListener(() => releases++);
      orchestrator.onMemoryMarkingRelease.createListener(() => releases++);
      const reservation = orchestrator.reserveMemory(60 * mib);
      const marking = orchestrator.markAllocation(60 * mib);
      results.push(committed());
      reservation.dispose();
      results.push(committed(), orchestrator.markedMemory / mib, orchestrator.reservedMemory);
      // More than was estimated, and it is there already.
      const more = orchestrator.markAllocation(70 * mib);
      results.push(await free());
      more.dispose();
      marking.dispose();
      results.push(committed(), orchestrator.markedMemory, releases);
    `;
    expect(await results(text)).toEqual([60, 60, 60, 0, 0, 0, 0, 3]);
  });

  test('a cap and a padding hold besides the limit', async () => {
    const text = `
      orchestrator.memoryCap = 50 * mib;
      const marking = orchestrator.markAllocation(20 * mib);
      results.push(await free(), (await orchestrator.getMemoryState()).total / mib);
      orchestrator.memoryCap = null;
      orchestrator.padding = 990 * mib;
      results.push(await free());
      marking.dispose();
    `;
    expect(await results(text)).toEqual([30, 50, 10]);
  });

  test('a load waits until a buffer is freed, and sees the memory that it was promised', async () => {
    const text = `
      const pointer = resource.allocate(70 * mib, stream);
      const load = async () => {
        results.push(await free());
        const reservation = orchestrator.reserveMemory(60 * mib);
        const marking = orchestrator.markAllocation(60 * mib);
        reservation.dispose();
        return marking;
      };
      const loaded = orchestrator.whenFree(60 * mib, load);
      results.push(resource.statistics().waiting);
      resource.deallocate(pointer, 70 * mib, stream);
      const marking = await loaded;
      results.push(committed());
      marking.dispose();
      results.push(committed());
    `;
    expect(await results(text)).toEqual([1, 100, 60, 0]);
  });

  test.skipIf(installed === undefined)('has all that the orchestrator of the package has', async () => {
    const module = join(installed as string, 'dist/bindings/utils/MemoryOrchestrator.js');
    const { MemoryOrchestrator } = (await import(pathToFileURL(module).href)) as { MemoryOrchestrator: { prototype: object } };
    const names = Object.getOwnPropertyNames(MemoryOrchestrator.prototype).filter(
      (name) => name !== 'constructor' && !name.startsWith('_'),
    );
    expect(await results(`results.push(...${JSON.stringify(names)}.filter((name) => !(name in orchestrator)));`)).toEqual([]);
  });
});

describe.skipIf(outside.path === undefined)('examples/node-llama-cpp/main.js under cistern run', () => {
  let environment: Record<string, string>;

  beforeEach(() => {
    environment = { CISTERN_DEVICE: 'cuda', LLAMA_STAND_IN_LIBRARY: outsideProgram('allocates.node') };
  });

  test("shows the library's models and cistern's buffers, and limits both", () =>
    inFolder(async (place) => {
      const file = join(place, 'run.cistern');
      const main = new URL('main.js', folder).pathname;
      const { code, stdout } = await runOutside(file, ['-q'], [process.execPath, main], undefined, environment);
      expect([code, stdout.split('\n').at(-2)]).toEqual([0, 'in the end: 0 B of 256 MiB']);
      const { allocations } = await readOutside(file);
      expect(allocations.map(({ account, bytes }) => `${account} ${bytes / mib}`)).toEqual(
        expect.arrayContaining(['allocates.node 96', 'allocates.node 64', 'cistern 128']),
      );
      expect(allocations.find(({ bytes }) => bytes === 96 * mib)?.stack).toContain(`loadModel (${new URL('stand-in.js', folder).href}:`);
      const limited = await runOutside(file, ['-q', '-f', '--limit', '150MiB'], [process.execPath, main], undefined, environment);
      expect(limited.stderr).toContain('ERR_CISTERN_OUT_OF_MEMORY');
    }));
});
