import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import { listRegions } from '../../src/lasting/index.js';
import { acceptFrom, awaitMessages, closeDescriptor, connectTo, listenAt, receiveFrom, sendTo } from '../../src/lasting/local-socket.js';
import { caught } from '../support/errors.js';
import { newSocketPath, startKeep } from '../support/keep.js';
import { randomOf } from '../support/random-of.js';
import { skipTest } from '../support/skip-test.js';

/** What the tests connected: a socket that is dropped here is closed after each test. */
const sockets: number[] = [];
afterEach(() => {
  for (const each of sockets.splice(0)) closeDescriptor(each);
});
const connect = (path: string) => {
  const socket = connectTo(path);
  sockets.push(socket);
  return socket;
};
const ask = (socket: number, message: unknown, descriptor?: number) => {
  const sent = sendTo(socket, typeof message === 'string' ? message : JSON.stringify(message), descriptor);
  const received = sent === 'done' ? receiveFrom(socket) : sent;
  return typeof received === 'string' ? received : (JSON.parse(received.text) as { is: string });
};
const regionsOf = (socket: string) => listRegions({ socket }).regions;
const open = (region: string) => ({ op: 'open', region, layout: 'a', bytes: 100, device: 'd' });

describe('cistern keep', () => {
  test('ends the connection of a peer that sends what is none of the protocol, and serves others', async () => {
    const keep = await startKeep();
    const before = keep.descriptors().length;
    const random = randomOf(47);
    const valid = [
      open('a'),
      { op: 'commit', address: 4096, sizes: [1, 2] },
      { op: 'remove', region: 'a' },
      { op: 'list' },
      { op: 'join', share: 'a' },
      { op: 'set share', share: 'b', bytes: 0 },
    ].map((each) => JSON.stringify(each));
    for (let i = 0; i < 500; i++) {
      const socket = connectTo(keep.socket);
      const descriptor = random(3) === 0 ? connectTo(keep.socket) : undefined;
      const text = hostileText(random, valid);
      const reply = ask(socket, text, descriptor);
      // Whatever was sent, there is an answer or an end, and nothing that was not asked for.
      expect([i, typeof reply === 'string' ? ['ECONNRESET', 'EMSGSIZE'].includes(reply) : 'is' in reply]).toEqual([i, true]);
      for (const each of [socket, descriptor]) if (each !== undefined) closeDescriptor(each);
    }
    await expect.poll(() => regionsOf(keep.socket)).toEqual([]);
    await expect.poll(() => keep.descriptors().length).toBe(before);
  });

  test('closes every descriptor that comes with a message that needs none, and takes one of a commit', async () => {
    const keep = await startKeep();
    const before = keep.descriptors().length;
    const socket = connect(keep.socket);
    const sent = connectTo(keep.socket);
    for (let i = 0; i < 50; i++) expect(ask(socket, { op: 'list' }, sent)).toMatchObject({ is: 'list' });
    expect(ask(socket, open('a'), sent)).toEqual({ is: 'writing' });
    closeDescriptor(sent);
    await expect.poll(() => keep.descriptors().length).toBe(before + 1);
    expect(ask(socket, { op: 'commit', address: 1, sizes: [] })).toMatchObject({ why: 'invalid' });
    await expect.poll(() => regionsOf(keep.socket)).toEqual([]);
  });

  test('does not wait for a peer that sends and never reads', async () => {
    const keep = await startKeep();
    const socket = connect(keep.socket);
    let sent = 0;
    while (sent < 100_000 && sendTo(socket, '{"op":"list"}') === 'done') sent++;
    expect(sent).toBeLessThan(100_000);
    expect(regionsOf(keep.socket)).toEqual([]);
  });

  test('has a bounded number of connections, of a process and in all, and room again once they end', async () => {
    const keep = await startKeep();
    const before = keep.descriptors().length;
    const many = Array.from({ length: 200 }, () => connect(keep.socket));
    const answers = many.map((socket) => ask(socket, { op: 'list' }));
    expect(answers.filter((answer) => typeof answer !== 'string' && answer['is'] === 'list').length).toBe(64);
    expect(caught(() => regionsOf(keep.socket))).toMatchObject({
      code: 'ERR_CISTERN_INVALID_STATE',
      message: expect.stringContaining('a process has 64 connections, which is the most'),
    });
    // The last refused one may not be closed yet.
    await expect.poll(() => keep.descriptors().length).toBe(before + 64);
    for (const each of sockets.splice(0)) closeDescriptor(each);
    await expect.poll(() => keep.descriptors().length).toBe(before);
    expect(regionsOf(keep.socket)).toEqual([]);
  });

  test('ends connections that stay silent, and not those that hold a region', async () => {
    const keep = await startKeep();
    const holder = connect(keep.socket);
    expect(ask(holder, open('held'))).toEqual({ is: 'writing' });
    const silent = connect(keep.socket);
    await expect.poll(() => receiveFrom(silent)).toBe('ECONNRESET');
    expect(regionsOf(keep.socket)).toMatchObject([{ region: 'held', state: 'writing' }]);
  });
});

describe('a process that connects', () => {
  /** Answers the first message of the first process that connects, from this thread, as a program in the place of `cistern keep` might. */
  async function impostor(reply: string | undefined, ask: (socket: string) => void): Promise<unknown> {
    if (process.platform !== 'linux') skipTest('Linux only');
    const path = newSocketPath();
    const listening = listenAt(path);
    if (typeof listening === 'string') throw new Error(listening);
    // A message that waits already is the answer to whatever is asked.
    const original = new Promise<unknown>((resolve) => {
      const worker = import('node:worker_threads').then(
        ({ Worker }) =>
          new Worker(
            `const { parentPort, workerData } = require('node:worker_threads');
             import(workerData.module).then(({ listRegions }) => {
               try { parentPort.postMessage(['answered', listRegions({ socket: workerData.path })]); }
               catch (error) { parentPort.postMessage([error.code, error.message]); }
             });`,
            { eval: true, workerData: { path, module: new URL('../../dist/lasting/index.js', import.meta.url).href } },
          ),
      );
      worker.then((started) => started.once('message', resolve));
    });
    ask(path);
    let accepted = acceptFrom(listening.listener);
    while (typeof accepted === 'string') {
      await sleep(2);
      accepted = acceptFrom(listening.listener);
    }
    awaitMessages([accepted.socket], 1000);
    receiveFrom(accepted.socket);
    if (reply !== undefined) sendTo(accepted.socket, reply);
    closeDescriptor(accepted.socket);
    const result = await original;
    for (const each of [listening.listener, listening.lock]) closeDescriptor(each);
    return result;
  }

  test('does not rely on what it is answered', async () => {
    for (const [reply, reason] of [
      [undefined, 'it has ended'],
      ['nonsense', 'the message is not JSON'],
      ['[]', 'the message is not an object'],
      ['{"is":"refused","why":"limit","message":3}', 'message cannot be 3'],
      ['{"is":"list","regions":3}', 'regions cannot be 3'],
      ['{"is":"list","regions":[]}', 'shares cannot be undefined'],
      ['{"is":"reading","address":-1,"sizes":[]}', 'address cannot be -1'],
      ['{"is":"writing"}', 'the answer is about something else'],
    ] as const) {
      expect(await impostor(reply, () => {})).toEqual(['ERR_CISTERN_KEEP_UNAVAILABLE', expect.stringContaining(reason)]);
    }
  });
});

function hostileText(random: (below: number) => number, valid: readonly string[]): string {
  const base = valid[random(valid.length)] as string;
  switch (random(8)) {
    case 0:
      return String.fromCharCode(...Array.from({ length: 1 + random(300) }, () => random(256)));
    case 1:
      return base.slice(0, 1 + random(base.length));
    case 2: {
      const at = random(base.length);
      return base.slice(0, at) + String.fromCharCode(random(0xffff)) + base.slice(at + 1);
    }
    case 3:
      return '['.repeat(100_000);
    case 4:
      return `{"op":"commit","address":1,"sizes":[${'1,'.repeat(random(20_000))}1]}`;
    case 5:
      return JSON.stringify({
        ...JSON.parse(base),
        region: '__proto__',
        layout: 'constructor',
        bytes: 2 ** random(80),
        sizes: { length: 5 },
      });
    case 6:
      return 'x'.repeat(160 * 1024 + random(3));
    default:
      return base;
  }
}
