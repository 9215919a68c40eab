import { spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { writeWhole } from '../../../src/tools/formats/index.js';
import { runModule } from '../../support/run-module.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
const path = join(folder, 'out.txt');
afterAll(() => rmSync(folder, { recursive: true }));
beforeEach(() => {
  for (const name of readdirSync(folder)) rmSync(join(folder, name), { recursive: true });
});

/** The start of a program that writes a file; its end is missing. */
const writing = `
  const { writeWhole } = await import('cistern/logs');
  await writeWhole(process.env.OUT, async (sink) => {
    await sink.write('half');
    console.log('writing');`;

describe('writeWhole', () => {
  test('writes pieces of text and bytes in order, and returns what was returned', async () => {
    const large = Buffer.alloc(300_000, 'x');
    const result = await writeWhole(path, async (sink) => {
      await sink.write('é');
      await sink.write(large);
      return 7;
    });
    expect(result).toBe(7);
    expect(readFileSync(path, 'utf8')).toBe(`é${large}`);
    expect(readdirSync(folder)).toEqual(['out.txt']);
  });

  test('writes an empty file if nothing is written', async () => {
    await writeWhole(path, async () => {});
    expect(readFileSync(path, 'utf8')).toBe('');
  });

  test('compresses if the name ends in .gz, or on request', async () => {
    await writeWhole(`${path}.gz`, (sink) => sink.write('a'));
    await writeWhole(path, (sink) => sink.write('b'), { gzip: true });
    await writeWhole(join(folder, 'plain.gz'), (sink) => sink.write('c'), { gzip: false });
    expect(gunzipSync(readFileSync(`${path}.gz`)).toString()).toBe('a');
    expect(gunzipSync(readFileSync(path)).toString()).toBe('b');
    expect(readFileSync(join(folder, 'plain.gz'), 'utf8')).toBe('c');
  });

  test('keeps the old file until everything is written, and keeps its mode', async () => {
    writeFileSync(path, 'before');
    chmodSync(path, 0o640);
    await writeWhole(path, async (sink) => {
      await sink.write('after');
      expect(readFileSync(path, 'utf8')).toBe('before');
    });
    expect(readFileSync(path, 'utf8')).toBe('after');
    expect(statSync(path).mode & 0o777).toBe(0o640);
  });

  test('replaces the target of a link, and keeps the link', async () => {
    writeFileSync(path, 'before');
    symlinkSync(path, join(folder, 'link'));
    await writeWhole(join(folder, 'link'), (sink) => sink.write('after'));
    expect(readFileSync(path, 'utf8')).toBe('after');
    expect(lstatSync(join(folder, 'link')).isSymbolicLink()).toBe(true);
  });

  test('writes through no link that somebody has put beside the file, and removes none', async () => {
    const victim = join(folder, 'victim');
    writeFileSync(victim, 'theirs');
    // What the file would be called if its name could be guessed.
    const links = Array.from({ length: 600 }, (_, i) => `.out.txt.${process.pid}-${i}.partial`);
    for (const [i, link] of links.entries()) symlinkSync(i % 2 === 0 ? victim : join(folder, 'nowhere'), join(folder, link));
    for (let i = 0; i < 20; i++) await writeWhole(path, (sink) => sink.write('mine'));
    expect(readFileSync(path, 'utf8')).toBe('mine');
    expect(readFileSync(victim, 'utf8')).toBe('theirs');
    expect(readdirSync(folder).sort()).toEqual([...links, 'out.txt', 'victim'].sort());
  });

  test.each(['victim', 'nowhere'])('refuses a link even if its name was guessed, and leaves it there: to %s', async (target) => {
    const victim = join(folder, 'victim');
    writeFileSync(victim, 'theirs');
    const name = '00000000-0000-4000-8000-000000000000';
    const link = join(folder, `.out.txt.${name}.partial`);
    symlinkSync(join(folder, target), link);
    const guessed = vi.spyOn(process.getBuiltinModule('node:crypto'), 'randomUUID').mockReturnValue(name);
    try {
      await expect(writeWhole(path, (sink) => sink.write('mine'))).rejects.toMatchObject({ code: 'EEXIST' });
    } finally {
      guessed.mockRestore();
    }
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
    expect(readFileSync(victim, 'utf8')).toBe('theirs');
    expect(readdirSync(folder)).not.toContain('nowhere');
  });

  test('leaves nothing behind if the work fails, and keeps the old file', async () => {
    writeFileSync(path, 'before');
    const work = writeWhole(path, async (sink) => {
      await sink.write('half');
      throw new Error('no more');
    });
    await expect(work).rejects.toThrow('no more');
    expect(readFileSync(path, 'utf8')).toBe('before');
    expect(readdirSync(folder)).toEqual(['out.txt']);
  });

  test('writes directly to anything but an ordinary file, and leaves it there', async () => {
    // Not a real device, which a fault would replace.
    expect(spawnSync('mkfifo', [path]).status).toBe(0);
    const reader = spawn('cat', [path]);
    const text = new Promise((resolve) => reader.stdout.once('data', (bytes) => resolve(String(bytes))));
    await writeWhole(path, (sink) => sink.write('through'));
    expect(await text).toBe('through');
    expect(lstatSync(path).isFIFO()).toBe(true);
    expect(readdirSync(folder)).toEqual(['out.txt']);
  });

  test('writes to a pipe that only a link of the system refers to', () => {
    const command = '"$0" --input-type=module --eval "$1" | cat';
    const { stdout, stderr } = spawnSync('sh', ['-c', command, process.execPath, `${writing} });`], {
      env: { ...process.env, OUT: '/dev/stdout' },
      encoding: 'utf8',
    });
    expect([stderr, stdout]).toEqual(['', expect.stringContaining('half')]);
  });

  test.each(['', '.gz'])('says why it cannot go on writing, however much is pending: out%s', async (ending) => {
    const fifo = `${path}${ending}`;
    expect(spawnSync('mkfifo', [fifo]).status).toBe(0);
    const reader = spawn('head', ['-c', '1', fifo]);
    const work = writeWhole(fifo, async (sink) => {
      for (;;) await sink.write(randomBytes(1_000_000));
    });
    await expect(work).rejects.toMatchObject({ code: 'EPIPE' });
    reader.kill();
  });

  test('names the file in errors, before any work is done', async () => {
    const work = async () => {
      throw new Error('not reached');
    };
    await expect(writeWhole(folder, work)).rejects.toMatchObject({ code: 'EISDIR', path: folder });
    await expect(writeWhole(join(folder, 'none', 'out'), work)).rejects.toMatchObject({ code: 'ENOENT', path: join(folder, 'none') });
  });

  test('names the file, not the temporary one, in later errors', async () => {
    const place = join(folder, 'place');
    mkdirSync(place);
    const target = join(place, 'out');
    const work = writeWhole(target, async (sink) => {
      rmSync(place, { recursive: true });
      await sink.write('lost');
    });
    await expect(work).rejects.toMatchObject({ code: 'ENOENT', path: target, message: expect.not.stringContaining('.partial') });
  });

  test('has created its file when a write is complete, so that the end of the process finds it', () => {
    const text = `
      const { writeWhole } = await import('cistern/logs');
      const { pbkdf2 } = await import('node:crypto');
      const { readdirSync } = await import('node:fs');
      await writeWhole(process.env.OUT, async (sink) => {
        pbkdf2('', '', 300_000, 64, 'sha512', () => {}); // keeps the only file thread busy
        await sink.write('half');
        console.log(readdirSync(process.env.FOLDER).join());
      });`;
    const { stdout } = runModule(text, { OUT: path, FOLDER: folder, UV_THREADPOOL_SIZE: '1' });
    expect(stdout).toMatch(/^\.out\.txt\..*\.partial$/m);
  });

  test.each(['SIGINT', 'SIGTERM', 'SIGHUP'] as const)('leaves nothing behind at %s, which still ends the process', async (signal) => {
    const text = `${writing} await new Promise((resolve) => setTimeout(resolve, 20_000)); });`;
    const child = spawn(process.execPath, ['--input-type=module', '--eval', text], { env: { ...process.env, OUT: path } });
    child.stdout.once('data', () => {
      expect(readdirSync(folder)).toEqual([expect.stringMatching(/^\.out\.txt\..*\.partial$/)]);
      child.kill(signal);
    });
    expect(await new Promise((resolve) => child.on('exit', (_, by) => resolve(by)))).toBe(signal);
    expect(readdirSync(folder)).toEqual([]);
  });

  test('is interrupted at once while the program computes what to write', async () => {
    const text = `
      const { writeWhole } = await import('cistern/logs');
      await writeWhole(process.env.OUT, async () => {
        process.stdout.write('computing\\n');
        for (const start = Date.now(); Date.now() - start < 20_000; );
      });`;
    const child = spawn(process.execPath, ['--input-type=module', '--eval', text], { env: { ...process.env, OUT: path } });
    child.stdout.once('data', () => child.kill('SIGINT'));
    expect(await new Promise((resolve) => child.on('exit', (_, by) => resolve(by)))).toBe('SIGINT');
    expect(existsSync(path)).toBe(false);
  }, 15_000);

  test.each([
    ['the process exits', 'process.exit(3); });', 3],
    [
      'an error is not caught',
      'setTimeout(() => { throw new Error("late"); }); await new Promise(() => setTimeout(() => {}, 9e3)); });',
      1,
    ],
  ])('leaves nothing behind if %s', (_, rest, status) => {
    expect(runModule(writing + rest, { OUT: path }).status).toBe(status);
    expect(readdirSync(folder)).toEqual([]);
  });

  test('leaves a signal to a program that listens for it', () => {
    const text = `process.on('SIGINT', () => {}); ${writing} process.kill(process.pid, 'SIGINT'); await new Promise((resolve) => setTimeout(resolve, 100)); });`;
    expect(runModule(text, { OUT: path }).status).toBe(0);
    expect(readFileSync(path, 'utf8')).toBe('half');
  });

  test('stops listening once everything is written', async () => {
    const listeners = () => ['exit', 'SIGINT', 'SIGTERM'].map((event) => process.listenerCount(event));
    const before = listeners();
    await Promise.all(['a', 'b'].map((name) => writeWhole(join(folder, name), (sink) => sink.write(name))));
    expect(listeners()).toEqual(before);
  });
});
