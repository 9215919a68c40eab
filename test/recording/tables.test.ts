import { describe, expect, test } from 'vitest';
import { Stream } from '../../src/index.js';
import { NameTable } from '../../src/recording/name-table.js';
import { moreStreams, StreamTable } from '../../src/recording/stream-table.js';

describe('a table of streams', () => {
  const table = (maximum: number) => {
    const definitions: [number, string][] = [];
    return { definitions, streams: new StreamTable(maximum, (index, handle) => definitions.push([index, handle])) };
  };
  const handleOf = (stream: Stream) => `0x${stream.nativeHandle.toString(16)}`;

  test('gives new numbers while there are any, then those of ended streams in the order in which they ended', () => {
    const { streams, definitions } = table(3);
    const [a, b, c, d, e, f] = Array.from({ length: 6 }, () => new Stream()) as [Stream, Stream, Stream, Stream, Stream, Stream];
    const handles = [a, b, c, d, e].map(handleOf);
    expect([a, b, a].map(({ identity }) => streams.indexOf(identity))).toEqual([0, 1, 0]);
    b.dispose();
    expect(streams.indexOf(c.identity)).toBe(2);
    a.dispose();
    expect(streams.indexOf(d.identity)).toBe(1);
    expect(streams.indexOf(e.identity)).toBe(0);
    expect(definitions).toEqual([
      [0, handles[0]],
      [1, handles[1]],
      [2, handles[2]],
      [1, handles[3]],
      [0, handles[4]],
    ]);
    expect(streams.indexOf(f.identity)).toBe(3);
    for (const stream of [c, d, e, f]) stream.dispose();
  });

  test('has one shared number when none is left', () => {
    const { streams, definitions } = table(1);
    const [a, b, c, d] = Array.from({ length: 4 }, () => new Stream()) as [Stream, Stream, Stream, Stream];
    expect([a, b, c].map(({ identity }) => streams.indexOf(identity))).toEqual([0, 1, 1]);
    expect(definitions.slice(1)).toEqual([[1, moreStreams]]);
    b.dispose();
    a.dispose();
    using e = new Stream();
    expect(streams.indexOf(d.identity)).toBe(0);
    expect(streams.indexOf(e.identity)).toBe(1);
    expect(definitions).toHaveLength(3);
    streams.clear();
    for (const stream of [c, d]) stream.dispose();
    expect(definitions).toHaveLength(3);
  });

  test('gives work of a stream the number of the stream, whichever is seen first and even after its end', () => {
    const { streams, definitions } = table(3);
    using a = new Stream();
    const b = new Stream();
    const handles = [a, b].map((stream) => stream.nativeHandle);
    const indexOf = (handle: number | undefined) => streams.indexOfHandle(0, handle as number);
    expect([indexOf(handles[0]), streams.indexOf(a.identity), indexOf(0), indexOf(0)]).toEqual([0, 0, 1, 1]);
    expect([streams.indexOf(b.identity), indexOf(handles[1])]).toEqual([2, 2]);
    b.dispose();
    expect(indexOf(handles[1])).toBe(2);
    expect(streams.indexOfHandle(1, handles[1] as number)).toBe(2);
    expect(indexOf(handles[1])).toBe(3);
    expect(definitions).toEqual([
      [0, handleOf(a)],
      [1, 'host'],
      [2, `0x${handles[1]?.toString(16)}`],
      [2, `0x${handles[1]?.toString(16)}`],
      [3, moreStreams],
    ]);
    streams.clear();
  });

  test('does not mistake a new stream in the slot of an ended one for that stream', () => {
    const { streams } = table(100);
    const slots = new Set<number>();
    const indexes = Array.from({ length: 10 }, () => {
      using stream = new Stream();
      slots.add(stream.identity.slot);
      return streams.indexOf(stream.identity);
    });
    expect(slots.size).toBe(1);
    expect(indexes).toEqual(Array.from({ length: 10 }, (_, i) => i));
  });
});

test('a table of names gives numbers from 1 on, the last of which stands for all further ones', () => {
  const definitions: [number, string][] = [];
  const names = new NameTable(3, 'more', (index, name) => definitions.push([index, name]));
  expect(['a', 'b', 'a', 'c', 'd', 'b', 'more'].map((name) => names.indexOf(name))).toEqual([1, 2, 1, 3, 3, 2, 3]);
  expect(definitions).toEqual([
    [1, 'a'],
    [2, 'b'],
    [3, 'more'],
  ]);
});
