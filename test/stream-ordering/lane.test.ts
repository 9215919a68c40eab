import { expect, test } from 'vitest';
import { Device, Event, Stream } from '../../src/index.js';
import { Lane } from '../../src/stream-ordering/lane.js';

test('a lane whose memory left waits for nothing, and records another event for what comes next', () => {
  using stream = new Stream();
  using other = new Stream();
  using _hold = stream.hold();
  const lane = new Lane(0, stream.timeline, Device.get(), false);
  lane.freeUnrecorded();
  const event = lane.release();
  const { version, recordedOn } = event as Event;
  expect(recordedOn).toBe(stream.timeline.id);
  expect(lane.isIdle).toBe(true);
  expect(lane.release()).toBeUndefined();
  expect(lane.order(other)).toBe(false);
  using fence = new Event();
  fence.record(stream);
  lane.freeWithRecording(fence);
  expect(lane.order(other)).toBe(true);
  lane.freeRecorded();
  expect(event?.version).toBe(version);
  expect(lane.release()).not.toBe(event);
});
