import { deviceMemory } from './device-memory.js';
import { type ProcessEnd, runModule, wholePackage } from './run-module.js';
import { skipTest } from './skip-test.js';

/** Whether the device under test is the strict driver. */
export const isStrictDriver = process.env['STRICT_DRIVER_CONTROL'] !== undefined;
/** Whether it is a software device. */
export const isSoftwareDevice = process.env['CISTERN_DEVICE'] !== 'cuda';

/** Skips the test on a driver whose pools other processes cannot open. */
export function needExportablePools(): void {
  if (process.env['STRICT_DRIVER_SHARED_POOLS'] === '0') skipTest('this driver does not share pools');
}

/**
 * What the processes of these tests have: the package's exports, messages that are kept until they
 * are asked for, and what a process has open. `post` and `received` exchange messages with the other
 * process.
 */
const prelude = `
  import { once } from 'node:events';
  import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
  import { setTimeout as sleep } from 'node:timers/promises';
  import * as cistern from '${wholePackage}';
  const {
    CudaAsyncMemoryResource, CudaMemoryResource, Device, DeviceBuffer, HostMemoryResource, KiB, LimitingResourceAdaptor,
    ManagedMemoryResource, MiB, PinnedHostMemoryResource, PoolMemoryResource, Stream, VirtualMemoryResource,
    attachBuffer, detachBuffer, discardBuffer, exportBuffer, importersDone, openBuffer, shareBuffer, toDLPack, wrapMemory,
  } = cistern;
  const queueOf = (source) => {
    const messages = [];
    const waiting = [];
    source.on('message', (message) => (waiting.length > 0 ? waiting.shift()(message) : messages.push(message)));
    return () => (messages.length > 0 ? Promise.resolve(messages.shift()) : new Promise((resolve) => waiting.push(resolve)));
  };
  const codeOf = (action) => { try { action(); return 'nothing'; } catch (error) { return error.code; } };
  const errorOf = (action) => { try { action(); return 'nothing'; } catch (error) { return error.code + ': ' + error.message; } };
  const valuesOf = (buffer) => [...new Set(buffer.toHostSync())].join();
  const until = async (condition) => { for (let i = 0; i < 2000 && !condition(); i++) await sleep(2); return condition(); };
  /** The files in memory that this process has open, and has mapped. */
  const filesOf = () => readdirSync('/proc/self/fd').filter((fd) => {
    try { return readlinkSync('/proc/self/fd/' + fd).includes('memfd:cistern-'); } catch { return false; }
  }).length;
  const mappingsOf = () => readFileSync('/proc/self/maps', 'utf8').split('\\n').filter((line) => line.includes('memfd:cistern-')).length;
`;

/**
 * Runs a module that starts others with `start(text)`. There, a process has `post` and `received`;
 * here, `child.post`, `child.received`, and `child.ended`. `show` prints.
 */
export function runProcesses(body: string, environment: Readonly<Record<string, string>> = {}, timeoutMilliseconds = 60_000): ProcessEnd {
  if (process.platform !== 'linux') skipTest('processes share memory on Linux only');
  return runModule(
    `
    import { spawn } from 'node:child_process';
    ${prelude}
    const show = (...values) => console.log(...values);
    const at = process.execArgv.indexOf('--import');
    const preload = at < 0 ? [] : process.execArgv.slice(at, at + 2);
    const start = (text) => {
      const child = spawn(process.execPath, [...preload, '--expose-gc', '--input-type=module', '--eval', ${JSON.stringify(prelude)} + \`
        const received = queueOf(process);
        const post = (message) => new Promise((resolve) => process.send(message, resolve));
      \` + text], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], serialization: 'advanced' });
      child.received = queueOf(child);
      child.post = (message) => child.send(message);
      child.ended = once(child, 'exit');
      return child;
    };
    ${body}
  `,
    { ...deviceMemory(256), ...environment },
    timeoutMilliseconds,
  );
}
