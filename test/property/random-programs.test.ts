import fc from 'fast-check';
import { describe, test } from 'vitest';
import { describeViolation, ProgramRunner } from './program-runner.js';
import { programs } from './program.js';

describe('x', () => {
  test('y', async () => {
    using runner = new ProgramRunner();
    const t = performance.now();
    const n = Number(process.env['N'] ?? 100);
    const d = fc.check(fc.property(programs(), (p) => { try { runner.run(p); } catch (e) { throw new Error(describeViolation(e)); } }), { numRuns: n, seed: Number(process.env['SEED'] ?? 1), endOnFailure: !!process.env['NOSHRINK'] });
    console.log(runner.counts, n / (performance.now() - t) * 1000, d.seed, d.counterexamplePath);
    if (d.failed) { console.log(JSON.stringify(d.counterexample, null, 1)); console.log((d.errorInstance as Error)?.stack); }
  }, 600000);
});
