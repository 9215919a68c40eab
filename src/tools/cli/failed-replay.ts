import { CisternError, InvalidLogError, SpecificationError } from '../../basics/errors.js';

/** A stack that could not be replayed to the end, and why. */
export interface FailedReplay {
  readonly resource: string;
  readonly error: { readonly code: string; readonly message: string };
}

/** The result for a stack, or its error, so that the remaining stacks are still replayed. */
export function orError<T>(resource: string, work: () => T): T | FailedReplay {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof CisternError) || error instanceof SpecificationError || error instanceof InvalidLogError) throw error;
    return { resource, error: { code: error.code, message: error.message } };
  }
}
