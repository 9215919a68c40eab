/**
 * The environment variables that choose the device for tests. `CISTERN_TEST_DEVICE` names it: the
 * software device, or with `cuda` whatever is behind libcuda.so.1, either a GPU or, under
 * `scripts/over-strict-driver.mjs`, the strict driver. Frees of the software device do not wait here.
 */
export const deviceUnderTest =
  process.env.CISTERN_TEST_DEVICE === 'cuda'
    ? { CISTERN_DEVICE: 'cuda' }
    : { CISTERN_DEVICE: 'software', CISTERN_SOFTWARE_MEMORY: '1GiB', CISTERN_SOFTWARE_DEVICES: '2', CISTERN_SOFTWARE_FREES_WAIT: '0' };
