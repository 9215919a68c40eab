import fc from 'fast-check';
import { beforeEach, expect, it, vi } from 'vitest';
import { MiB } from '../../src/units.js';

const v8 = vi.hoisted(() => ({ deltas: [] as number[], refuses: false }));

vi.mock('../../src/driver/external-memory.js', () => ({
  adjustExternalMemory(deltaBytes: number): boolean {
    if (!v8.refuses) v8.deltas.push(deltaBytes);
    return !v8.refuses;
  },
}));

let account: (deltaBytes: number) => void;

beforeEach(async () => {
  v8.deltas.length = 0;
  v8.refuses = false;
  vi.resetModules();
  account = (await import('../../src/buffers/external-memory-account.js')).accountExternalMemory;
});

const told = () => v8.deltas.reduce((sum, delta) => sum + delta, 0);

it('tells V8 in batches of at least 1 MiB, never of less than nothing, and exactly when nothing is held', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(3 * MiB), { maxLength: 100 }), fc.infiniteStream(fc.boolean()), (sizes, frees) => {
      v8.deltas.length = 0;
      const held: number[] = [];
      let heldBytes = 0;
      const step = (delta: number) => {
        const calls = v8.deltas.length;
        account(delta);
        heldBytes += delta;
        expect(told()).toBeGreaterThanOrEqual(0);
        expect(Math.abs(heldBytes - told())).toBeLessThan(1 * MiB);
        for (const batch of v8.deltas.slice(calls)) expect(Math.abs(batch) >= 1 * MiB || heldBytes === 0).toBe(true);
      };
      for (const bytes of sizes) {
        held.push(bytes);
        step(bytes);
        if (frees.next().value) step(-(held.shift() as number));
      }
      for (const bytes of held) step(-bytes);
      expect(told()).toBe(0);
    }),
  );
});

it('tells V8 nothing of small buffers that come and go', () => {
  for (let i = 0; i < 1000; i++) {
    account(4096);
    account(-4096);
  }
  expect(v8.deltas).toEqual([]);
});

it('makes up for what V8 did not take note of', () => {
  v8.refuses = true;
  account(5 * MiB);
  v8.refuses = false;
  account(1);
  account(-5 * MiB - 1);
  expect(v8.deltas).toEqual([5 * MiB + 1, -5 * MiB - 1]);
});
