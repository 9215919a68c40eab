import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { withResource } from '../../src/index.js';
import { annotate, RecordingResourceAdaptor } from '../../src/recording/index.js';
import { eventsOf, phasePath } from '../support/read-recording.js';
import { recorded } from '../support/recordings.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

/** Runs a function with a recorded resource, and returns the recording. */
function recordedUse(use: (resource: RecordingResourceAdaptor) => void | Promise<void>) {
  return recorded((recording) => use(new RecordingResourceAdaptor(new SpyResource(), { recording })));
}

/** The kind and phase of each event; for the start or end of a phase, that phase. */
async function phasesOf(use: (resource: RecordingResourceAdaptor) => void | Promise<void>): Promise<string[]> {
  const run = await recordedUse(use);
  return eventsOf(run).map(({ kind, phase, first, second }) =>
    kind.startsWith('phase') ? `${kind} ${phasePath(run, first)}` : `${second} in ${phase || 'none'}`,
  );
}

describe('annotate', () => {
  test('gives each event its phase', async () => {
    const phases = await phasesOf((resource) => {
      resource.allocate(1, stream);
      const result = annotate('step', () => {
        resource.allocate(2, stream);
        annotate('forward', () => resource.allocate(3, stream));
        resource.allocate(4, stream);
        return 'result';
      });
      expect(result).toBe('result');
      resource.allocate(5, stream);
    });
    expect(phases).toEqual([
      '1 in none',
      'phaseBegin step',
      '2 in step',
      'phaseBegin step/forward',
      '3 in step/forward',
      'phaseEnd step/forward',
      '4 in step',
      'phaseEnd step',
      '5 in none',
    ]);
  });

  test('ends a phase whose function throws', async () => {
    const phases = await phasesOf(async (resource) => {
      const failing = () => {
        resource.allocate(1, stream);
        throw new Error('no');
      };
      expect(() => annotate('a', failing)).toThrow('no');
      await expect(
        annotate('b', async () => {
          await setImmediate();
          failing();
        }),
      ).rejects.toThrow('no');
    });
    expect(phases).toEqual(['phaseBegin a', '1 in a', 'phaseEnd a', 'phaseBegin b', '1 in b', 'phaseEnd b']);
  });

  test('follows asynchronous code, even if phases overlap', async () => {
    const phases = await phasesOf(async (resource) => {
      const work = (name: string, size: number) =>
        annotate(name, async () => {
          for (let i = 0; i < 2; i++) {
            resource.allocate(size + i, stream);
            await setImmediate();
          }
          return name;
        });
      const results = Promise.all([work('a', 10), work('b', 20)]);
      resource.allocate(1, stream);
      expect(await results).toEqual(['a', 'b']);
      resource.allocate(2, stream);
    });
    expect(phases).toEqual([
      'phaseBegin a',
      '10 in a',
      'phaseBegin b',
      '20 in b',
      '1 in none',
      '11 in a',
      '21 in b',
      'phaseEnd a',
      'phaseEnd b',
      '2 in none',
    ]);
  });

  test('has one phase per name within a phase, however often and in whatever scope', async () => {
    const run = await recordedUse((resource) => {
      for (let i = 0; i < 3; i++) {
        annotate('step', () => withResource(resource, () => annotate('forward', () => resource.allocate(1, stream))));
        annotate('forward', () => resource.allocate(1, stream));
      }
    });
    expect(run.phases).toEqual([
      { name: '', outer: 0 },
      { name: 'step', outer: 0 },
      { name: 'forward', outer: 1 },
      { name: 'forward', outer: 0 },
    ]);
  });

  test('keeps recordings apart: each has the phases that it saw, including the one in which it began', async () => {
    let inner: { phases: readonly { name: string }[] } | undefined;
    const outer = await phasesOf((resource) =>
      annotate('around', async () => {
        inner = await recordedUse((second) => {
          second.allocate(1, stream);
          annotate('within', () => second.allocate(2, stream));
        });
        resource.allocate(3, stream);
      }),
    );
    expect(inner?.phases.map(({ name }) => name)).toEqual(['', 'around', 'within']);
    expect(outer).toEqual(['phaseBegin around', 'phaseBegin around/within', 'phaseEnd around/within', '3 in around', 'phaseEnd around']);
  });

  test('just calls the function if nothing is recorded', async () => {
    const promise = Promise.resolve(5);
    expect(annotate('x', () => promise)).toBe(promise);
    expect(annotate('x', () => 7)).toBe(7);
    expect(() => annotate(5 as unknown as string, () => {})).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
    expect(() => annotate('x', 5 as unknown as () => void)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
  });

  // The phases of all tests count, so this test comes last.
  test('has at most 65,535 phases, the last of which stands for all further ones', async () => {
    const run = await recordedUse((resource) => {
      for (let i = 0; i < 65_600; i++) annotate(`phase ${i}`, () => resource.allocate(i, stream));
      annotate('phase 5', () => annotate('new', () => resource.allocate(0, stream)));
    });
    const phases = eventsOf(run).flatMap(({ kind, phase }) => (kind === 'allocate' ? [phase] : []));
    const known = phases.indexOf('(more phases)');
    expect(known).toBeGreaterThan(65_000);
    expect(known).toBeLessThan(65_535);
    expect(phases.slice(0, known)).toEqual(Array.from({ length: known }, (_, i) => `phase ${i}`));
    expect(new Set(phases.slice(known))).toEqual(new Set(['(more phases)']));
  });
});
