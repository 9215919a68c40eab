import { describe, expect, test } from 'vitest';
import { KeepState } from '../../src/lasting/keep-state.js';
import { type ListReply, mostRegions, mostShares, type Reply } from '../../src/lasting/protocol.js';
import type { Peer } from '../../src/lasting/region-table.js';
import { randomOf } from '../support/random-of.js';

const device = 'a-device';

/** A table, and the descriptors that it has not closed. */
function tableOf(limitBytes = Number.POSITIVE_INFINITY) {
  const open = new Set<number>();
  let last = 0;
  const table = new KeepState<number>(limitBytes, (descriptor) => {
    if (!open.delete(descriptor)) throw new Error(`descriptor ${descriptor} is closed twice`);
  });
  const newDescriptor = () => {
    open.add(++last);
    return last;
  };
  const ask = (peer: Peer, message: object, descriptor?: number) => table.answer(peer, JSON.stringify(message), descriptor);
  const opens = (peer: Peer, region = 'weights', bytes = 100, layout = 'a') =>
    ask(peer, { op: 'open', region, layout, bytes, device }).reply;
  const commits = (peer: Peer) => ask(peer, { op: 'commit', address: 4096, sizes: [10, 20] }, newDescriptor()).reply;
  const list = () => ask({ process: 0 }, { op: 'list' }).reply as ListReply;
  return { table, open, newDescriptor, ask, opens, commits, list };
}

const why = (reply: Reply) => (reply.is === 'refused' ? reply.why : reply.is);

describe('a region', () => {
  test('is written by one process, and then read by many, with what was committed', () => {
    const { table, open, ask, opens, commits } = tableOf();
    const [writer, second, third] = [{ process: 1 }, { process: 2 }, { process: 3 }];
    expect(opens(writer)).toEqual({ is: 'writing' });
    expect(opens(second)).toEqual({ is: 'refused', why: 'in use', message: 'process 1 writes it' });
    expect(commits(writer)).toEqual({ is: 'committed' });
    expect(ask(second, { op: 'open', region: 'weights', layout: 'a', bytes: 100, device })).toEqual({
      reply: { is: 'reading', address: 4096, sizes: [10, 20] },
      descriptor: 1,
    });
    opens(third);
    for (const each of [writer, second, third]) table.ended(each);
    expect(why(opens({ process: 4 }))).toBe('reading');
    expect([...open]).toEqual([1]);
  });

  test('is empty again if the process that writes it ends', () => {
    const { table, opens } = tableOf();
    const writer = { process: 1 };
    opens(writer);
    table.ended(writer);
    expect([opens({ process: 2 }), table.regionBytes]).toEqual([{ is: 'writing' }, 100]);
  });

  test('with another layout, size or device is refused, and stays', () => {
    const { ask, opens, commits } = tableOf();
    const writer = { process: 1 };
    opens(writer);
    commits(writer);
    const peer = { process: 2 };
    for (const changed of [{ layout: 'b' }, { bytes: 200 }, { device: 'another' }]) {
      const { reply } = ask(peer, { op: 'open', region: 'weights', layout: 'a', bytes: 100, device, ...changed });
      const [name, value] = Object.entries(changed)[0] as [string, unknown];
      expect(reply).toEqual({ is: 'refused', why: 'mismatch', message: expect.stringMatching(`^its ${name} is .* and not ${value}$`) });
    }
    expect(why(opens(peer))).toBe('reading');
  });

  test('is removed only while nobody uses it, with its descriptor', () => {
    const { table, open, ask, opens, commits } = tableOf();
    const writer = { process: 1 };
    const remove = () => ask({ process: 9 }, { op: 'remove', region: 'weights' }).reply;
    opens(writer);
    expect(remove()).toEqual({ is: 'refused', why: 'in use', message: 'written by process 1' });
    commits(writer);
    expect(remove()).toEqual({ is: 'refused', why: 'in use', message: 'read by process 1' });
    table.ended(writer);
    expect(remove()).toEqual({ is: 'removed', bytes: 100 });
    expect(remove()).toEqual({ is: 'removed', bytes: 0 });
    expect([open.size, table.regionBytes]).toEqual([0, 0]);
  });

  test('counts against the limit from when it is opened for the first time until it is removed', () => {
    const { table, ask, opens, commits } = tableOf(150);
    const [first, second] = [{ process: 1 }, { process: 2 }];
    opens(first);
    expect(opens(second, 'other')).toMatchObject({
      why: 'limit',
      message: '100 B were asked for, and of the limit of 150 B, 50 B are left',
    });
    commits(first);
    table.ended(first);
    expect(why(opens(second, 'other'))).toBe('limit');
    ask(second, { op: 'remove', region: 'weights' });
    expect(why(opens(second, 'other'))).toBe('writing');
  });

  test('is one of a fixed number at most', () => {
    const { opens } = tableOf();
    for (let i = 0; i < mostRegions; i++) opens({ process: i }, `r${i}`);
    expect(why(opens({ process: 0 }, 'more'))).toBe('limit');
  });
});

test('a list of as many regions and shares as there can be, with the longest names, fits one message', () => {
  const { ask, opens, list } = tableOf();
  for (let i = 0; i < mostRegions; i++) {
    const peer = { process: 4_194_304 + i };
    opens(peer, `${'r'.repeat(60)}${i + 1000}`, 2 ** 52, 'l'.repeat(128));
  }
  for (let i = 0; i <= mostShares; i++) {
    const share = `${'s'.repeat(60)}${i + 1000}`;
    expect(why(ask({ process: 1 }, { op: 'set share', share, bytes: 2 ** 52 }).reply)).toBe(i < mostShares ? 'share set' : 'limit');
    for (let member = 0; member < 20; member++) ask({ process: 4_194_304 + member }, { op: 'join', share });
  }
  expect(JSON.stringify(list()).length).toBeLessThan(160 * 1024);
});

describe('a share', () => {
  test('has equal parts for its members, who are told when those change', () => {
    const { table, ask, list } = tableOf();
    const [first, second, command] = [{ process: 1 }, { process: 2 }, { process: 3 }];
    const join = (peer: Peer) => ask(peer, { op: 'join', share: 'caches' });
    const set = (bytes: number) => ask(command, { op: 'set share', share: 'caches', bytes });
    expect(join(first).reply).toMatchObject({ why: 'absent' });
    expect(set(101)).toEqual({ reply: { is: 'share set' }, told: [] });
    expect(join(first)).toEqual({ reply: { is: 'part', bytes: 101 }, told: [] });
    expect(join(second)).toEqual({ reply: { is: 'part', bytes: 50 }, told: [first] });
    expect(set(40).told).toEqual([first, second]);
    expect([table.partOf(first), table.holds(first), table.holds(command)]).toEqual([{ is: 'part', bytes: 20 }, true, false]);
    expect(join(first)).toMatchObject({ reply: { why: 'invalid' }, isLast: true });
    expect(table.ended(second)).toEqual([first]);
    expect(table.partOf(first)).toEqual({ is: 'part', bytes: 40 });
    expect(list().shares).toEqual([{ share: 'caches', bytes: 40, processes: [1] }]);
    set(0);
    expect(table.partOf(first)).toEqual({ is: 'part', bytes: 0 });
    table.ended(first);
    set(0);
    expect(list().shares).toEqual([]);
  });
});

test('what is no message of the protocol ends the connection, and its descriptor is closed', () => {
  const { open, newDescriptor, table, opens, list } = tableOf();
  const writer = { process: 1 };
  opens(writer, 'written');
  const faults = [
    ...['', 'null', '[]', '3', '{', '{"op":"nope"}', '{"op":"open"}', '{"op":"commit"}', '{"op":"remove"}'],
    ...['', '-a', 'a b', '../a\u0000', 'a'.repeat(65)].map((region) =>
      JSON.stringify({ op: 'open', region, layout: 'a', bytes: 1, device }),
    ),
    ...['', 'a b', 'a'.repeat(129), 5].map((layout) => JSON.stringify({ op: 'open', region: 'a', layout, bytes: 1, device })),
    ...[0, -1, 0.5, 2 ** 60, '1', null].map((bytes) => JSON.stringify({ op: 'open', region: 'a', layout: 'a', bytes, device })),
    ...['{"op":"join"}', '{"op":"join","share":"/"}', '{"op":"set share","share":"a"}', '{"op":"set share","share":"a","bytes":-1}'],
    ...[0, -1, 'x'].map((address) => JSON.stringify({ op: 'commit', address, sizes: [] })),
    ...[[-1], ['a'], 'a', {}, Array(8193).fill(1)].map((sizes) => JSON.stringify({ op: 'commit', address: 1, sizes })),
    JSON.stringify({ op: 'commit', address: 1, sizes: [101] }),
  ];
  for (const text of faults) {
    const { reply, isLast } = table.answer(writer, text, newDescriptor());
    expect([text.slice(0, 60), why(reply), isLast]).toEqual([text.slice(0, 60), 'invalid', true]);
  }
  expect(open.size).toBe(0);
  expect(table.answer(writer, JSON.stringify({ op: 'commit', address: 1, sizes: [] }), undefined).isLast).toBe(true);
  expect(table.answer({ process: 2 }, JSON.stringify({ op: 'commit', address: 1, sizes: [] }), newDescriptor()).isLast).toBe(true);
  expect([open.size, why(list())]).toEqual([0, 'list']);
});

test('random calls keep the invariants: one writer, readers only of what is committed, bytes within the limit, no descriptor lost', () => {
  for (let seed = 1; seed <= 200; seed++) {
    const random = randomOf(seed);
    const { table, open, newDescriptor, ask, list } = tableOf(1000);
    const peers = new Set<Peer>();
    for (let step = 0; step < 200; step++) {
      if (peers.size === 0 || random(4) === 0) peers.add({ process: step });
      const peer = [...peers][random(peers.size)] as Peer;
      const region = `r${random(4)}`;
      const bytes = 100 * (1 + random(5));
      switch (random(6)) {
        case 0:
        case 1:
          ask(peer, { op: 'open', region, layout: 'a', bytes, device }, random(5) === 0 ? newDescriptor() : undefined);
          break;
        case 2:
        case 3:
          ask(peer, { op: 'commit', address: 1, sizes: [random(600)] }, random(5) === 0 ? undefined : newDescriptor());
          break;
        case 4:
          ask(peer, { op: 'remove', region });
          break;
        default:
          table.ended(peer);
          peers.delete(peer);
      }
      const { regions } = list();
      const sum = regions.reduce((total, each) => total + each.bytes, 0);
      const committed = regions.filter(({ state }) => state === 'committed');
      const writers = regions.filter(({ state }) => state === 'writing').map(({ processes }) => processes.length);
      expect([seed, step, table.regionBytes, table.regionBytes <= 1000, open.size, writers.every((each) => each === 1)]).toEqual([
        ...[seed, step, sum, true, committed.length, true],
      ]);
    }
    for (const peer of peers) table.ended(peer);
    expect(JSON.stringify(list())).not.toContain('writing');
  }
});
