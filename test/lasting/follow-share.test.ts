import { afterEach, describe, expect, test } from 'vitest';
import { CudaMemoryResource, LimitingResourceAdaptor, MiB, Stream } from '../../src/index.js';
import { followShare, listRegions, type ShareEvent, setShare } from '../../src/lasting/index.js';
import { caught, code } from '../support/errors.js';
import { runKeep, startKeep } from '../support/keep.js';

const stream = new Stream();
const followers: Disposable[] = [];
afterEach(() => {
  for (const each of followers.splice(0)) each[Symbol.dispose]();
});

/** A process's part in the share 'caches': each follower has its own connection. */
function follow(socket: string) {
  const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 64 * MiB });
  const events: ShareEvent[] = [];
  const follower = followShare('caches', (event) => void events.push(event), { resource, socket, intervalMilliseconds: 5 });
  followers.push(follower);
  return { resource, follower, events };
}

describe('the limit of a resource that follows a share', () => {
  test('is an equal part of it, for as many as there are', async () => {
    const { socket } = await startKeep();
    setShare('caches', 9 * MiB, { socket });
    const first = follow(socket);
    expect(first.resource.limitBytes).toBe(9 * MiB);
    const second = follow(socket);
    expect(second.resource.limitBytes).toBe(4.5 * MiB);
    await expect.poll(() => first.resource.limitBytes).toBe(4.5 * MiB);
    second.follower.dispose();
    await expect.poll(() => first.resource.limitBytes).toBe(9 * MiB);
    expect(second.resource.limitBytes).toBe(4.5 * MiB);
  });

  test('is raised and lowered by command, and who has more is asked to give back', async () => {
    const { socket } = await startKeep();
    expect(runKeep('--socket', socket, '--share', 'caches=8MiB', '--share', 'other=1MiB')).toMatchObject({
      status: 0,
      stdout: expect.stringMatching(/^share +size +processes\ncaches +8 MiB +none\nother +1 MiB +none\n/),
    });
    const { resource, events } = follow(socket);
    const pointer = resource.allocate(6 * MiB, stream);
    expect(runKeep('--socket', socket, '--share', 'caches=4MiB').status).toBe(0);
    await expect.poll(() => events).toEqual([{ share: 'caches', bytes: 4 * MiB, overBytes: 2 * MiB }]);
    expect(caught(() => resource.allocate(1, stream))).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      limitBytes: 4 * MiB,
      availableBytes: 0,
    });
    resource.deallocate(pointer, 6 * MiB, stream);
    setShare('caches', 16 * MiB, { socket });
    await expect.poll(() => resource.limitBytes).toBe(16 * MiB);
    expect(events.length).toBe(1);
    expect(runKeep('--socket', socket, '--share', '16MiB')).toMatchObject({ status: 2, stderr: expect.stringContaining('caches=20GiB') });
  });

  test('stays while there is no cistern keep, and follows the next one that has the share', async () => {
    const keep = await startKeep();
    setShare('caches', 8 * MiB, { socket: keep.socket });
    const { resource, follower } = follow(keep.socket);
    await keep.kill();
    follower.check();
    expect(resource.limitBytes).toBe(8 * MiB);
    await startKeep({ socket: keep.socket });
    setShare('caches', 2 * MiB, { socket: keep.socket });
    await expect.poll(() => resource.limitBytes).toBe(2 * MiB);
  });

  test('is refused for a share that is not there, and for a limit that workers share', async () => {
    const { socket } = await startKeep();
    const upstream = new CudaMemoryResource();
    const resource = new LimitingResourceAdaptor(upstream, { limitBytes: 1 * MiB });
    expect(caught(() => followShare('nope', () => {}, { resource, socket }))).toMatchObject({
      code: 'ERR_CISTERN_INVALID_STATE',
      message: `cannot follow the share 'nope': there is no such share; "cistern keep --share nope=SIZE" makes it`,
    });
    setShare('caches', 8 * MiB, { socket });
    using shared = new LimitingResourceAdaptor(upstream, { limitBytes: 1 * MiB, shared: 'follow-share' });
    expect(() => followShare('caches', () => {}, { resource: shared, socket })).toThrow(code('ERR_CISTERN_INVALID_STATE'));
    await expect.poll(() => listRegions({ socket }).shares).toEqual([{ share: 'caches', bytes: 8 * MiB, processes: [] }]);
    expect(() => followShare('caches', () => {}, { resource: upstream as never, socket })).toThrow(code('ERR_INVALID_ARG_TYPE'));
  });
});

test('setLimit changes what may be allocated, and takes nothing away', () => {
  const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 1 * MiB });
  const pointer = resource.allocate(512 * 1024, stream);
  resource.setLimit(4096);
  expect([resource.limitBytes, resource.allocatedBytes, resource.roomBytes()]).toEqual([4096, 512 * 1024, 0]);
  expect(() => resource.allocate(1, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
  resource.deallocate(pointer, 512 * 1024, stream);
  resource.deallocate(resource.allocate(4096, stream), 4096, stream);
  expect(() => resource.setLimit(-1)).toThrow(code('ERR_OUT_OF_RANGE'));
});
