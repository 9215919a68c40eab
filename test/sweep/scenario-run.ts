import { CisternError, ResourceStack } from '../../src/index.js';
import { HostFault, HostFunction } from './fault-points.js';

/** A sequence of calls, any of which may fail. */
export interface Scenario {
  readonly name: string;
  /** Every call that may fail is a step of `run`. */
  readonly play: (run: ScenarioRun) => void | Promise<void>;
}

/** Ends a scenario that cannot go on. */
class Abandoned extends Error {}

interface Validating {
  validate(): void;
}

/**
 * Plays a scenario once, with a given number of faults. A step that fails must throw a typed error,
 * must leave every structure valid, and must succeed when tried again: the fault is over then, and
 * a failed step leaves the state unchanged. The same retry recovers what was refused at the end: a
 * resource that could not be disposed is disposed again. With n faults, at most n steps fail, each
 * at most n times.
 */
export class ScenarioRun {
  /** The steps that failed with a typed error, and the errors. */
  readonly errors: string[] = [];
  /** Violations. */
  readonly problems: string[] = [];
  readonly #hostFunctions: Map<string, HostFunction>;
  readonly #faults: number;
  readonly #owned: { readonly step: string; readonly resource: Disposable }[] = [];
  readonly #validating: Validating[] = [];
  #expectsOrderViolations = false;

  /**
   * @param hostFunctions those known from an earlier run; others are added
   * @param faults how many calls may fail
   */
  constructor(hostFunctions: Map<string, HostFunction>, faults = 1) {
    this.#hostFunctions = hostFunctions;
    this.#faults = faults;
  }

  /** Plays the scenario, and disposes what it made. */
  async play(scenario: Scenario): Promise<void> {
    try {
      await scenario.play(this);
    } catch (error) {
      if (!(error instanceof Abandoned)) this.problems.push(`the scenario ended: ${describe(error)}`);
    }
    for (const { step, resource } of this.#owned.splice(0).reverse()) {
      try {
        this.do(step, () => resource[Symbol.dispose]());
      } catch (error) {
        if (!(error instanceof Abandoned)) throw error;
      }
    }
  }

  /** Makes something that is disposed at the end, latest first. */
  make<T extends Disposable>(name: string, create: () => T): T {
    const made = this.do(`make ${name}`, create);
    this.#owned.push({ step: `dispose ${name}`, resource: made });
    const resources: readonly object[] = made instanceof ResourceStack ? made.layers : [made];
    this.#validating.push(...resources.filter(isValidating));
    return made;
  }

  /** A call that may fail, once for each fault. */
  do<T>(step: string, action: () => T): T {
    for (let attempt = 0; ; attempt++) {
      try {
        return action();
      } catch (error) {
        if (attempt === this.#faults) return this.#abandon(`${step}: fails again, ${describe(error)}`);
        this.#failed(step, error);
      }
    }
  }

  /** The same for a call that returns a promise. */
  async doAsync<T>(step: string, action: () => Promise<T>): Promise<T> {
    for (let attempt = 0; ; attempt++) {
      try {
        return await action();
      } catch (error) {
        if (attempt === this.#faults) return this.#abandon(`${step}: fails again, ${describe(error)}`);
        this.#failed(step, error);
      }
    }
  }

  /** A call that must be refused with a code; another error may come first. */
  refused(step: string, code: string, action: () => unknown): void {
    for (let attempt = 0; attempt <= this.#faults; attempt++) {
      try {
        action();
      } catch (error) {
        if ((error as { code?: unknown }).code === code) {
          this.#validate(step);
          return;
        }
        if (attempt < this.#faults) {
          this.#failed(step, error);
          continue;
        }
        this.#abandon(`${step}: fails with ${describe(error)} instead of ${code}`);
      }
      this.#abandon(`${step}: is not refused`);
    }
  }

  /** A call that may throw an error with a code; then this returns `undefined`. */
  attempt<T>(step: string, code: string, action: () => T): T | undefined {
    return this.do(step, () => {
      try {
        return action();
      } catch (error) {
        if ((error as { code?: unknown }).code !== code) throw error;
        this.#validate(step);
        return undefined;
      }
    });
  }

  /** From here on, the scenario breaks stream order on purpose. */
  expectOrderViolations(): void {
    this.#expectsOrderViolations = true;
  }

  get expectsOrderViolations(): boolean {
    return this.#expectsOrderViolations;
  }

  /** A condition that must hold at this point, whatever failed. */
  check(holds: boolean, claim: string): void {
    if (!holds) this.problems.push(`it does not hold that ${claim}`);
  }

  /**
   * What must be given back at the end. With two faults it may not be: if a call fails for one
   * fault, the other may make the driver refuse to take back what that call had allocated, which
   * nothing then refers to.
   */
  checkGivenBack(isGivenBack: boolean, claim: string): void {
    if (this.#faults === 1) this.check(isGivenBack, claim);
  }

  /**
   * To be called by a function that the scenario passes to cistern; throws if this is the armed
   * call.
   */
  hostCall(name: string): void {
    let known = this.#hostFunctions.get(name);
    if (known === undefined) {
      known = new HostFunction(name);
      this.#hostFunctions.set(name, known);
    }
    known.pass();
  }

  #failed(step: string, error: unknown): void {
    this.errors.push(`${step}: ${describe(error)}`);
    if (!isTyped(error)) this.problems.push(`${step}: fails untyped, ${describe(error)}`);
    if (this.errors.length > this.#faults) this.problems.push(`${step}: fails as well, ${describe(error)}`);
    this.#validate(step);
  }

  #validate(step: string): void {
    for (const resource of this.#validating) {
      try {
        resource.validate();
      } catch (error) {
        this.problems.push(`${step}: leaves a structure invalid, ${describe(error)}`);
      }
    }
  }

  #abandon(problem: string): never {
    this.problems.push(problem);
    throw new Abandoned();
  }
}

/**
 * If a block ends with an error and then cannot dispose what it used, the language combines both
 * errors.
 */
function isTyped(error: unknown): boolean {
  if (error instanceof CisternError || error instanceof HostFault) return true;
  const { name, error: last, suppressed } = error as { name?: string; error?: unknown; suppressed?: unknown };
  return name === 'SuppressedError' && isTyped(last) && isTyped(suppressed);
}

function isValidating(resource: object): resource is Validating {
  return 'validate' in resource;
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { code } = error as { code?: unknown };
  return `${error.constructor.name}${code === undefined ? '' : ` (${code})`}: ${error.message}`;
}
