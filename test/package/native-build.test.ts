import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

const script = fileURLToPath(new URL('../../scripts/build-native.mjs', import.meta.url));
const { buildNative } = await import(new URL('../../scripts/build-native.mjs', import.meta.url).href);
const isThere = spawnSync('cmake', ['--version']).status === 0;

describe.skipIf(!isThere)('scripts/build-native.mjs (skipped without CMake)', () => {
  let scratch: string;
  let project: string;

  beforeEach(() => {
    scratch = mkdtempSync(join(tmpdir(), 'cistern-native-build-'));
    project = join(scratch, 'project');
    mkdirSync(project);
    writeFileSync(
      join(project, 'CMakeLists.txt'),
      `cmake_minimum_required(VERSION 3.18)
       project(small LANGUAGES CXX)
       add_library(addon MODULE addon.cc)
       set_target_properties(addon PROPERTIES PREFIX "" SUFFIX ".node")`,
    );
    // As in the root folder's: without it cmake-js would download the headers of Node.
    writeFileSync(join(project, 'package.json'), '{ "binary": { "napi_versions": [9] } }');
    write(project, 'the first');
  });

  afterEach(() => rmSync(scratch, { recursive: true }));

  function write(folder: string, text: string): void {
    writeFileSync(join(folder, 'addon.cc'), `extern "C" const char* text() { return "${text}"; }\n`);
  }

  function build(directory: string): string {
    return readFileSync(join(buildNative({ directory, isQuiet: true }), 'addon.node'), 'latin1');
  }

  const built = (folder: string) => readFileSync(join(folder, 'build', 'Release', 'addon.node'), 'latin1');

  test('a changed source is built, and one that does not compile keeps the last addon', { timeout: 120_000 }, () => {
    expect(build(project)).toContain('the first');
    write(project, 'the second');
    expect(build(project)).toContain('the second');
    writeFileSync(join(project, 'addon.cc'), '#error as expected\n');
    expect(() => build(project)).toThrow(/#error as expected/);
    expect(built(project)).toContain('the second');
  });

  test('in a copy of a folder, its own sources are built and those of the original are not', { timeout: 120_000 }, () => {
    expect(build(project)).toContain('the first');
    const copy = join(scratch, 'copy');
    cpSync(project, copy, { recursive: true, preserveTimestamps: true });
    write(copy, 'the copy');
    write(project, 'the second');
    expect(build(copy)).toContain('the copy');
    expect(built(project)).toContain('the first');
  });

  test('without CMake, one line says what to install', () => {
    const tools = join(scratch, 'tools');
    mkdirSync(tools);
    symlinkSync(process.execPath, join(tools, 'node'));
    const { status, stderr } = spawnSync(process.execPath, [script], { encoding: 'utf8', env: { PATH: tools } });
    expect({ status, stderr }).toEqual({
      status: 1,
      stderr: expect.stringMatching(/^cistern: CMake is not on PATH.*apt install.*\n$/),
    });
  });
});
