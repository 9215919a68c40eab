/**
 * Whether tests may ask for more managed memory than the device has. On a GPU only if `CISTERN_TEST_OVERSUBSCRIPTION` is 1: the
 * driver then moves pages without end, and a GPU that others use may hang.
 */
export const mayOversubscribe =
  process.env['CISTERN_DEVICE'] !== 'cuda' ||
  process.env['STRICT_DRIVER_CONTROL'] !== undefined ||
  process.env['CISTERN_TEST_OVERSUBSCRIPTION'] === '1';

export const oversubscriptionReason = 'asks a GPU for more managed memory than it has, unless CISTERN_TEST_OVERSUBSCRIPTION is 1';
