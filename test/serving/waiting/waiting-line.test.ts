import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { OutOfMemoryError } from '../../../src/basics/errors.js';
import { type MemoryWait, WaitingLine, type WaitRules, WaitTimes } from '../../../src/serving/waiting/waiting-line.js';

const shortage = () => new OutOfMemoryError('none is left', { requestedBytes: 1, path: [] });

/** Bytes that calls take once there are enough. */
function bed(inOrder: boolean) {
  const line = new WaitingLine(inOrder, new WaitTimes());
  const log: string[] = [];
  const memory = { freeBytes: 0 };
  const waits = new Map<string, MemoryWait>();
  const rules: WaitRules = {
    isShortage: () => true,
    begin: () => {},
    beforeAttempt: () => {},
    beforeWaiting: () => 'wait',
    failure: (end) => new Error(end),
    gaveUp: (error) => error,
    over: () => {},
  };
  const take = (name: string, bytes: number, own: Partial<WaitRules> = {}, options = {}) =>
    line.run(
      () => {
        log.push(`${name} tries`);
        if (bytes > memory.freeBytes) throw shortage();
        memory.freeBytes -= bytes;
        return name;
      },
      options,
      { ...rules, begin: (wait) => waits.set(name, wait), over: () => log.push(`${name} is over`), ...own },
    );
  const free = (bytes: number, payer?: object) => {
    memory.freeBytes += bytes;
    line.memoryFreed(payer);
  };
  return { line, log, memory, waits, rules, take, free };
}

/** Awaited attempts that take a byte, and free it, and one more as long as there are some. */
function awaiting(usedBytes: number) {
  const { line, rules } = bed(false);
  const payer = { usedBytes, isEnough: false };
  let tries = 0;
  const attempt = async () => {
    tries++;
    payer.usedBytes++;
    await nextTurn();
    payer.usedBytes = Math.max(0, payer.usedBytes - 2);
    line.memoryFreed(payer);
    if (!payer.isEnough) throw shortage();
    return 'served';
  };
  return { line, payer, tries: () => tries, take: () => line.run(attempt, {}, { ...rules, payer }) };
}

describe('a line in order', () => {
  test('serves the first attempt within the call, and never one that fits before one that waits', async () => {
    const { line, take, free, memory } = bed(true);
    memory.freeBytes = 1;
    const [first, large, small] = [take('first', 1), take('large', 4), take('small', 1)];
    expect(memory.freeBytes).toBe(0);
    expect(await first).toBe('first');
    free(3);
    await nextTurn();
    expect({ waiting: line.length, free: memory.freeBytes }).toEqual({ waiting: 2, free: 3 });
    free(2);
    expect(await Promise.all([large, small])).toEqual(['large', 'small']);
    expect(line).toMatchObject({ length: 0, times: { waits: 2 } });
  });

  test('goes on with the next if the first gives up, is refused, or its time is over', async () => {
    const { take, free, waits, memory } = bed(true);
    const useless = take('useless', 9, { beforeWaiting: () => 'give up' });
    const refused = take('refused', 9);
    const late = take('late', 9);
    const last = take('last', 1);
    await expect(useless).rejects.toThrow('none is left');
    await nextTurn();
    waits.get('refused')?.endWith('refused');
    await expect(refused).rejects.toThrow('refused');
    waits.get('late')?.endWith('timeout');
    await expect(late).rejects.toThrow('timeout');
    free(1);
    expect(await last).toBe('last');
    expect(memory.freeBytes).toBe(0);
  });

  test('tries once more before it says that the time is over', async () => {
    const { line, take, memory, waits } = bed(true);
    const waiting = take('waiting', 1);
    await nextTurn();
    // Nobody tells the line.
    memory.freeBytes = 1;
    waits.get('waiting')?.endWith('timeout');
    expect(await waiting).toBe('waiting');
    expect(line.length).toBe(0);
  });

  test('ends a wait with the reason of its signal, also of one that was aborted meanwhile', async () => {
    const { log, take } = bed(true);
    const controller = new AbortController();
    const waiting = take('waiting', 1, { begin: () => controller.abort(new Error('no more')) }, { signal: controller.signal });
    await expect(waiting).rejects.toThrow('no more');
    await expect(take('waiting', 1, {}, { signal: controller.signal })).rejects.toThrow('no more');
    expect(log.filter((line) => line.endsWith('over'))).toHaveLength(1);
  });

  test('tries again at once if the rules have freed something themselves', async () => {
    const { memory, take } = bed(true);
    let collections = 0;
    const beforeWaiting = () => {
      memory.freeBytes += 1;
      return ++collections < 5 ? ('try' as const) : ('give up' as const);
    };
    expect(await take('waiting', 3, { beforeWaiting })).toBe('waiting');
    expect(collections).toBe(3);
  });
});

describe('a line in no order', () => {
  test('lets all try at each free', async () => {
    const { line, take, free } = bed(false);
    const [large, small] = [take('large', 4), take('small', 1)];
    await nextTurn();
    free(1);
    expect(await small).toBe('small');
    expect(line.length).toBe(1);
    free(4);
    expect(await large).toBe('large');
  });

  test('is not woken by what an awaited attempt frees of its own, but by what others free in it', async () => {
    const { line, take, payer, tries } = awaiting(0);
    const run = take();
    for (let turn = 0; turn < 10; turn++) await nextTurn();
    expect(tries()).toBe(2);
    line.memoryFreed({ usedBytes: 0 });
    for (let turn = 0; turn < 10; turn++) await nextTurn();
    expect(tries()).toBe(3);
    payer.isEnough = true;
    line.memoryFreed();
    expect(await run).toBe('served');
  });

  test('is woken if less is used after an awaited attempt than before', async () => {
    const { line, take, payer, tries } = awaiting(5);
    const run = take();
    for (let turn = 0; turn < 30; turn++) await nextTurn();
    // Each of the first attempts frees a byte more than it takes.
    expect(tries()).toBe(6);
    payer.isEnough = true;
    line.memoryFreed();
    expect(await run).toBe('served');
  });

  test('passes errors that are no shortage', async () => {
    const { line, take } = bed(false);
    await expect(take('waiting', 1, { isShortage: () => false })).rejects.toThrow('none is left');
    await expect(
      take('waiting', 1, {
        isShortage: () => true,
        beforeAttempt: () => {
          throw new Error('disposed');
        },
      }),
    ).rejects.toThrow('disposed');
    expect(line.length).toBe(0);
  });
});
