/**
 * Tests request failures, delays and sizes with the functions of the software device (`failCall`,
 * `setCallLatency`, `configureSoftwareDevice`). On another device these requests go to that device,
 * by replacing functions of the addon's binding. A test that requests something that the device
 * does not have is skipped.
 */
import { createRequire } from 'node:module';

const [success, invalidValue, invalidDevice, notPermitted, notSupported] = [0, 1, 101, 800, 801];
const pinnedHostKind = 2;
const concurrentManagedAccess = 89;

/** Why a test that holds a stream and allocates is skipped. */
export const heldBackReason = 'an allocation of this driver waits for the stream that the test holds';

/** Why a test that makes the driver fail, or be slow or small, is skipped. */
export const noFaultsReason = 'a GPU cannot be made to fail, or to be slow or small';

/** Whether the device under test is a strict driver whose plain allocations wait for the device. */
export const allocationsMayWait = process.env.STRICT_DRIVER_ALLOC_SYNCS === '1';

/** Whether a stream can wait for a word of memory; only a strict driver may be told otherwise. */
export const hasStreamMemoryOperations =
  process.env.STRICT_DRIVER_STREAM_MEMORY_OPERATIONS !== '0' &&
  process.env.STRICT_DRIVER_PINNED_IS_MANAGED !== '1' &&
  process.env.STRICT_DRIVER_MISSING !== 'cuStreamWaitValue32';

/** Whether the driver refuses to register host memory; only a strict driver may be told otherwise. */
export const forbidsRegistration = process.env.STRICT_DRIVER_PINNED_IS_MANAGED === '1';

/** The addon that controls the strict driver, if that is the device under test. */
const controlPath = process.env.STRICT_DRIVER_CONTROL;

/**
 * @param {object} binding what `native()` returns
 * @param {Float64Array} mailbox where its functions leave their results
 * @param {(reason: string) => void} skip ends a test that requests something that the device cannot
 * do
 */
export function directFaults(binding, mailbox, skip) {
  if (process.env.CISTERN_DEVICE !== 'cuda') return;
  const holds = new Holds(binding, mailbox);
  const skipReleased = (reason) => {
    holds.releaseAll();
    skip(reason);
  };
  Object.assign(
    binding,
    controlPath === undefined ? refused(mailbox, skipReleased) : controlled(binding, mailbox, skip),
    skipped(binding, mailbox, skipReleased),
    allocationsMayWait ? heldBack(binding, holds, skipReleased) : {},
    forbidsRegistration ? unregistered(binding, mailbox, skipReleased) : {},
    {
      holdStream: (stream) => holds.hold(stream),
      releaseHold: (hold) => holds.release(hold),
    },
  );
}

/** The streams that tests hold. One that a skipped test leaves held would keep later tests from freeing memory. */
class Holds {
  #calls;
  #mailbox;
  #live = new Set();
  /** Those of skipped tests, in which a host function, or `using`, may still release them. */
  #ended = new Set();

  constructor({ holdStream, releaseHold }, mailbox) {
    this.#calls = { holdStream, releaseHold };
    this.#mailbox = mailbox;
  }

  get count() {
    return this.#live.size;
  }

  hold(stream) {
    this.#calls.holdStream(stream);
    if (this.#mailbox[0] === success) this.#live.add(this.#mailbox[1]);
  }

  release(hold) {
    this.#live.delete(hold);
    if (this.#ended.delete(hold)) this.#mailbox[0] = success;
    else this.#calls.releaseHold(hold);
  }

  releaseAll() {
    for (const hold of this.#live) {
      this.#calls.releaseHold(hold);
      this.#ended.add(hold);
    }
    this.#live.clear();
  }
}

/**
 * A driver whose allocations wait for the device never returns from one while the program itself
 * stalls a stream.
 */
function heldBack(binding, holds, skip) {
  // Copies may need more staging memory.
  const allocating = ['allocate', 'allocateVirtual', 'copy', 'copyFromHost', 'copyToHost', 'copyToHostSync'].map((name) => {
    const call = binding[name];
    const held = (...args) => {
      if (holds.count > 0) skip(heldBackReason);
      return call(...args);
    };
    return [name, held];
  });
  return Object.fromEntries(allocating);
}

/** With confidential computing, host memory cannot be registered: a test that asks for it, and for no other, is skipped. */
function unregistered({ allocate }, mailbox, skip) {
  return {
    allocate: () => {
      const isRegistered = mailbox[1] === pinnedHostKind && mailbox[4] > 0 && mailbox[5] === 0;
      allocate();
      if (isRegistered && mailbox[0] === notPermitted) skip('host memory cannot be registered');
    },
  };
}

/** What a GPU cannot do. Ending something that was not started is not a fault. */
function refused(mailbox, skip) {
  const refuse = (asks) => {
    if (asks) skip(noFaultsReason);
    mailbox[0] = success;
    mailbox[1] = 0;
  };
  return {
    failCall: (_name, nth) => refuse(nth > 0),
    failCallAfter: () => refuse(true),
    setLatency: (_name, nanoseconds) => refuse(nanoseconds > 0),
    configureSoftware: () => refuse(true),
    liveStreams: () => refuse(true),
  };
}

function controlled(binding, mailbox, skip) {
  const control = createRequire(import.meta.url)(controlPath);
  // Loads the driver that injects the failures.
  binding.cudaUnavailableReason();
  const answer = (status, result = 0) => {
    mailbox[0] = status;
    mailbox[1] = result;
  };
  return {
    failCall: (name, nth, status) => answer(success, control.failCall(name, nth, status) ? 1 : 0),
    failCallAfter: (first, name, nth, status) => {
      control.failCallAfter(first, name, nth, status);
      answer(success);
    },
    setLatency: (name, nanoseconds) => {
      control.setLatency(name, nanoseconds);
      answer(success);
    },
    liveStreams: () => answer(success, control.liveStreams()),
    // The number of devices is fixed when the driver is loaded.
    configureSoftware: (totalBytes, devices, _isStrict, _hasConcurrentAccess, _nanoseconds, _isCoherent, peers) => {
      if (peers !== undefined && peers !== 'all') skip('which devices reach each other is fixed when the driver is loaded');
      answer(devices > 0 || (totalBytes > 0 && !control.setTotalMemory(totalBytes)) ? invalidValue : success);
    },
  };
}

/**
 * Calls that some devices lack: pools, virtual memory, and advice and prefetches for memory that the host may use
 * at the same time.
 */
function skipped(binding, mailbox, skip) {
  const { createPool, reserveAddresses, advise, prefetch, deviceAttribute } = binding;
  const lacksConcurrentAccess = () => {
    deviceAttribute(0, concurrentManagedAccess);
    return mailbox[0] === success && mailbox[1] === 0;
  };
  const ofManaged = (call) => {
    return (...args) => {
      call(...args);
      if (mailbox[0] !== invalidDevice) return;
      if (lacksConcurrentAccess()) skip('the device and the host cannot use managed memory at the same time');
      // Reading an attribute leaves its own status.
      mailbox[0] = invalidDevice;
    };
  };
  return {
    createPool: (...args) => {
      createPool(...args);
      const [, , isManaged] = args;
      if (isManaged && [notSupported, invalidValue].includes(mailbox[0])) skip('the driver has no pools of managed memory');
      if (mailbox[0] === notSupported) skip('the device has no pools');
    },
    reserveAddresses: (...args) => {
      reserveAddresses(...args);
      if (mailbox[0] === notSupported) skip('the device has no virtual memory management');
    },
    advise: ofManaged(advise),
    prefetch: ofManaged(prefetch),
  };
}
