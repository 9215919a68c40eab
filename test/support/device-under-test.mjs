/**
 * The variables that choose the device which tests run on. `CISTERN_TEST_DEVICE` says which it is: the software device, or with `cuda` what is
 * behind libcuda.so.1: a GPU, or under `scripts/over-strict-driver.mjs` the strict driver.
 */
export const deviceUnderTest =
  process.env.CISTERN_TEST_DEVICE === 'cuda'
    ? { CISTERN_DEVICE: 'cuda' }
    : { CISTERN_DEVICE: 'software', CISTERN_SOFTWARE_MEMORY: '1GiB', CISTERN_SOFTWARE_DEVICES: '2' };
