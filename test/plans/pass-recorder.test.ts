import { describe, expect, test } from 'vitest';
import { eventObserver } from '../../src/driver/streams/stream-identity.js';
import { Event, Stream } from '../../src/index.js';
import { PassRecorder } from '../../src/plans/pass-recorder.js';

describe('the recorder of a pass', () => {
  test('stops observing events once the pass is too long', () => {
    using stream = new Stream();
    const recorder = new PassRecorder(stream);
    const { identity } = stream;
    for (let i = 0; i < 2 ** 19; i++) {
      recorder.allocated(i, 256, identity);
      recorder.freed(i, identity);
    }
    expect(eventObserver).toBeDefined();
    recorder.allocated(0, 256, identity);
    expect(eventObserver).toBeUndefined();
    recorder.freed(0, identity);
    expect(recorder.end()).toBe('the pass has more than 1048576 operations and events');
  });

  test('keeps few waits for each operation', () => {
    const streams = Array.from({ length: 4 }, () => new Stream());
    using event = new Event();
    const recorder = new PassRecorder(event);
    streams.forEach((stream, i) => {
      recorder.allocated(i, 256, stream.identity);
    });
    for (let i = 0; i < 5000; i++) {
      event.record(streams[i % 4] as Stream);
      (streams[(i + 1) % 4] as Stream).identity.wait(event);
    }
    streams.forEach((stream, i) => {
      recorder.freed(i, stream.identity);
      stream.dispose();
    });
    const sequence = recorder.end();
    expect(sequence).toMatchObject({ operations: { length: 8 } });
    expect(typeof sequence === 'object' && sequence.waits?.length).toBe(4 * 4 + 1024);
  });
});
