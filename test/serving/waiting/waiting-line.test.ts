import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, test, vi } from 'vitest';
import { OutOfMemoryError } from '../../../src/basics/errors.js';
import { Account } from '../../../src/serving/accounts/account.js';
import { MemoryWait, WaitingLine, type WaitRules, WaitTimes } from '../../../src/serving/waiting/waiting-line.js';

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
    const { line, log, take, free, memory } = bed(true);
    expect(line.length).toBe(0);
    memory.freeBytes = 1;
    const [first, large, small] = [take('first', 1), take('large', 4), take('small', 1)];
    expect(memory.freeBytes).toBe(0);
    expect(await first).toBe('first');
    free(3);
    line.wakeAll();
    await nextTurn();
    expect({ waiting: line.length, free: memory.freeBytes }).toEqual({ waiting: 2, free: 3 });
    expect(log).not.toContain('small tries');
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

  test('asks the rules of the first after each attempt, and those of another once: a free wakes the first alone', async () => {
    const { take, free } = bed(true);
    const asked: string[] = [];
    const waiting = ['first', 'second'].map((name) =>
      take(name, 4, {
        beforeWaiting: (_, isTurn) => {
          asked.push(`${name} ${isTurn}`);
          return 'wait';
        },
      }),
    );
    await nextTurn();
    expect(asked).toEqual(['second false', 'first true']);
    free(1);
    await nextTurn();
    expect(asked).toEqual(['second false', 'first true', 'first true']);
    free(7);
    expect(await Promise.all(waiting)).toEqual(['first', 'second']);
    expect(asked).toHaveLength(3);
  });

  test('tells the rules of who is woken whether it was its turn', async () => {
    const { line, take, free } = bed(true);
    const asked: [string, boolean][] = [];
    const noting = (name: string): Partial<WaitRules> => ({
      beforeWaiting: (_, isTurn) => {
        asked.push([name, isTurn]);
        return 'wait';
      },
    });
    const calls = [take('first', 1, noting('first')), take('second', 1, noting('second'))];
    await nextTurn();
    asked.splice(0);
    line.wakeAll();
    await nextTurn();
    expect(asked).toEqual([
      ['first', true],
      ['second', false],
    ]);
    free(2);
    expect(await Promise.all(calls)).toEqual(['first', 'second']);
  });

  test('makes no attempt for what it waited for has ended', async () => {
    const { log, take, waits, memory } = bed(true);
    const waiting = take('waiting', 1);
    await nextTurn();
    memory.freeBytes = 1;
    const before = log.length;
    waits.get('waiting')?.endWith('ended');
    await expect(waiting).rejects.toThrow('ended');
    expect(log.slice(before)).toEqual(['waiting is over']);
  });

  test('tells the error of the last attempt, and passes one that is no shortage', async () => {
    const { line, rules, waits } = bed(true);
    const errors = [shortage(), shortage(), new RangeError('wrong')];
    const told: unknown[] = [];
    const run = line.run(
      () => {
        throw errors.shift();
      },
      {},
      {
        ...rules,
        begin: (wait) => waits.set('waiting', wait),
        failure: (_, error) => {
          told.push(error);
          return error;
        },
      },
    );
    await nextTurn();
    line.memoryFreed();
    await expect(run).rejects.toThrow('wrong');
    const [first, last] = [shortage(), shortage()];
    const attempts = [first, last];
    const ended = line.run(
      () => {
        throw attempts.shift() ?? last;
      },
      {},
      {
        ...rules,
        begin: (wait) => waits.set('ended', wait),
        failure: (_, error) => {
          told.push(error);
          return error;
        },
      },
    );
    await nextTurn();
    waits.get('ended')?.endWith('timeout');
    await ended.catch(() => {});
    expect(told).toEqual([last]);
    expect(told[0]).toBe(last);
  });

  test('ends a wait whose signal was aborted by its first attempt', async () => {
    const { line, rules } = bed(true);
    const controller = new AbortController();
    const attempt = () => {
      controller.abort(new Error('no more'));
      throw shortage();
    };
    await expect(line.run(attempt, { signal: controller.signal }, rules)).rejects.toThrow('no more');
  });

  test('leaves no timer behind, and notes how long calls have waited', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
    try {
      const { line, take, free } = bed(true);
      for (const milliseconds of [5, 3]) {
        const waiting = take('waiting', 1, {}, { timeoutMilliseconds: 1000 });
        await nextTurn();
        vi.advanceTimersByTime(milliseconds);
        free(1);
        await waiting;
      }
      expect(vi.getTimerCount()).toBe(0);
      expect(line.times).toMatchObject({ waits: 2, milliseconds: 8, longestMilliseconds: 5 });
    } finally {
      vi.useRealTimers();
    }
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

  test('tries at once, although another waits', async () => {
    const { take, free, memory } = bed(false);
    const large = take('large', 4);
    memory.freeBytes = 1;
    const small = take('small', 1);
    expect(memory.freeBytes).toBe(0);
    expect(await small).toBe('small');
    free(4);
    expect(await large).toBe('large');
  });

  test('is not woken by what an attempt frees of its own while that of another ends', async () => {
    const { line, rules } = bed(false);
    const ends = new Map<string, () => void>();
    const tries: string[] = [];
    const payers = { first: { usedBytes: 1 }, second: { usedBytes: 1 } };
    const take = (name: 'first' | 'second') =>
      line.run(
        async () => {
          tries.push(name);
          await new Promise<void>((resolve) => ends.set(name, resolve));
          if (tries.length < 4) throw shortage();
        },
        {},
        { ...rules, payer: payers[name] },
      );
    const runs = [take('first'), take('second')];
    // Each fails twice, and waits.
    ends.get('first')?.();
    await nextTurn();
    ends.get('first')?.();
    await nextTurn();
    expect(tries).toEqual(['first', 'second', 'first']);
    line.memoryFreed(payers.second);
    await nextTurn();
    expect(tries).toEqual(['first', 'second', 'first']);
    ends.get('second')?.();
    await nextTurn();
    ends.get('second')?.();
    line.memoryFreed();
    await nextTurn();
    for (const end of ends.values()) end();
    await Promise.all(runs);
  });

  test.each([true, false])('is not woken by what an attempt frees that then fails: in order %s', async (inOrder) => {
    const { line, rules, waits } = bed(inOrder);
    let tries = 0;
    const attempt = () => {
      tries++;
      line.memoryFreed();
      throw shortage();
    };
    const run = line.run(attempt, {}, { ...rules, begin: (wait) => waits.set('waiting', wait) });
    for (let turn = 0; turn < 10; turn++) await nextTurn();
    expect(tries).toBe(2);
    waits.get('waiting')?.endWith('ended');
    await expect(run).rejects.toThrow('ended');
  });

  test('is woken by an attempt that frees more than it takes without being awaited', async () => {
    const { line, rules, take, log, free } = bed(false);
    const waiting = take('waiting', 4);
    await nextTurn();
    const before = log.length;
    const payer = { usedBytes: 1 };
    expect(await line.run(() => --payer.usedBytes, {}, { ...rules, payer })).toBe(0);
    await nextTurn();
    expect(log.slice(before)).toEqual(['waiting tries']);
    free(4);
    await waiting;
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

  test('is not woken while another attempt of the same payer goes on, but as that ends', async () => {
    const { line, rules, take, log, free } = bed(false);
    const payer = { usedBytes: 2 };
    const waiting = take('waiting', 4);
    await nextTurn();
    const ends: (() => void)[] = [];
    const runs = [1, 2].map(() => line.run(() => new Promise<void>((resolve) => ends.push(resolve)), {}, { ...rules, payer }));
    const before = log.length;
    payer.usedBytes = 1;
    const tries: string[][] = [];
    for (const end of ends) {
      end();
      await nextTurn();
      tries.push(log.slice(before));
    }
    expect(tries).toEqual([[], ['waiting tries']]);
    await Promise.all(runs);
    free(4);
    await waiting;
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

test('the time of waits is added up, and counts for the account whose calls have waited', () => {
  const times = new WaitTimes();
  const account = new Account({ name: 'waiting' });
  times.note(3, account);
  times.note(5, account);
  times.note(1, undefined);
  expect([times.waits, times.milliseconds, times.longestMilliseconds, account.waitedMilliseconds]).toEqual([3, 9, 5, 8]);
});

test('a wait is not woken before somebody wakes it', async () => {
  const wait = new MemoryWait();
  let isWoken = false;
  const woken = wait.woken().then(() => {
    isWoken = true;
  });
  await nextTurn();
  expect(isWoken).toBe(false);
  wait.wake();
  await woken;
});
