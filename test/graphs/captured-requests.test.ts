import { expect, test } from 'vitest';
import { CapturedRequests } from '../../src/graphs/captured-requests.js';

/** What is known about each request, and the operations. */
function contents(requests: CapturedRequests) {
  const rows = Array.from({ length: requests.count }, (_, request) => [
    requests.addressOf(request),
    requests.bytesOf(request),
    requests.streamOf(request),
    requests.epochOf(request),
    requests.blockOf(request),
    requests.freeStreamOf(request),
    requests.freeEpochOf(request),
  ]);
  return { rows, operations: Array.from({ length: requests.operationCount }, (_, i) => requests.operation(i)) };
}

/** Adds requests, and frees the first ones of them, latest first. Returns what must then be known. */
function fill(requests: CapturedRequests, count: number, freed: number, seed: number) {
  const rows: number[][] = [];
  const operations: number[] = [];
  for (let i = 0; i < count; i++) {
    const row = [2 ** 44 + 256 * (seed + i), 2 ** 33 + seed + i, i % 3, seed + i, i % 7 === 0 ? -1 : 64 + i];
    const [address, bytes, stream, epoch, block] = row as [number, number, number, number, number];
    expect(requests.add(address, bytes, stream, epoch, block)).toBe(i);
    rows.push([...row, -1, expect.any(Number)]);
    operations.push(i);
  }
  for (let i = freed - 1; i >= 0; i--) {
    const epoch = i % 5 === 0 ? -1 : 3 * i;
    requests.free(i, i % 4, epoch);
    rows[i]?.splice(5, 2, i % 4, epoch);
    operations.push(~i);
  }
  return { rows, operations };
}

test.each([0, 10, 1000])('the requests of a capture and their frees are known, all of them, if %i were expected', (expected) => {
  const requests = new CapturedRequests();
  requests.begin(expected);
  const known = fill(requests, 1025, 1025, 1);
  expect(contents(requests)).toEqual(known);
});

// So many that their frees fill the arrays, as often as these grow.
test.each([64, 128, 256])('as many frees as %i requests have room', (count) => {
  const requests = new CapturedRequests();
  requests.begin(0);
  expect(contents(requests)).toEqual({ rows: [], operations: [] });
  const known = fill(requests, count, count, 1);
  expect(contents(requests)).toEqual(known);
});

test('a capture begins without the requests and frees of the one before', () => {
  const requests = new CapturedRequests();
  requests.begin(0);
  fill(requests, 100, 50, 1);
  requests.begin(3);
  expect(contents(requests)).toEqual({ rows: [], operations: [] });
  const known = fill(requests, 10, 4, 1000);
  expect(contents(requests)).toEqual(known);
});
