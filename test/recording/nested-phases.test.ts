import { expect, test } from 'vitest';
import { annotate, RecordingResourceAdaptor } from '../../src/recording/index.js';
import { recorded } from '../support/recordings.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

test('phases within each other by the thousand take no longer for each, in a recording that begins within them too', async () => {
  const depth = 20_000;
  let late: ReturnType<typeof recorded> | undefined;
  const run = await recorded(async (recording) => {
    const resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
    const enter = async (left: number): Promise<void> => {
      // Each has a call stack of its own.
      await null;
      resource.deallocate(resource.allocate(1, stream), 1, stream);
      if (left > 0) return annotate(`phase ${left}`, () => enter(left - 1));
      late = recorded((another) => {
        new RecordingResourceAdaptor(new SpyResource(), { recording: another }).allocate(2, stream);
      });
      await late;
    };
    await enter(depth);
  });
  expect(run.phases).toHaveLength(depth + 1);
  const { phases } = await (late as ReturnType<typeof recorded>);
  expect(phases).toHaveLength(depth + 1);
  expect(phases.slice(1).every(({ outer }, i) => outer === i)).toBe(true);
});
