import { CisternError, ResourceStack } from '../../src/index.js';
import { HostFault, HostFunction } from './fault-points.js';

/** Something to be done, call by call, with whatever fails in between. */
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
 * Plays a scenario once, with so many faults in it. A step that fails must do so with a typed error, must leave every structure valid, and
 * must succeed when it is tried again: a fault is over then, and a step that failed has changed nothing. That is also how what was refused
 * at the end comes back: a resource that could not be disposed is disposed again. With n faults no more than n steps fail, and none more than n
 * times.
 */
export class ScenarioRun {
  /** The steps that failed as they may, and how. */
  readonly errors: string[] = [];
  /** What must not be. */
  readonly problems: string[] = [];
  readonly #hostFunctions: Map<string, HostFunction>;
  readonly #faults: number;
  readonly #owned: { readonly step: string; readonly resource: Disposable }[] = [];
  readonly #validating: Validating[] = [];
  #expectsOrderReports = false;

  /**
   * @param hostFunctions those known from an earlier run; others are added
   * @param faults how many calls may fail
   */
  constructor(hostFunctions: Map<string, HostFunction>, faults = 1) {
    this.#hostFunctions = hostFunctions;
    this.#faults = faults;
  }

  /** Plays it, and disposes what it made. */
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

  /** Makes something that is disposed at the end, the latest first. */
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

  /** The same for a call that gives a promise. */
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

  /** A call that may answer with an error of a code; then this gives `undefined`. */
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

  /** From here on stream order is not kept on purpose. */
  expectOrderReports(): void {
    this.#expectsOrderReports = true;
  }

  get expectsOrderReports(): boolean {
    return this.#expectsOrderReports;
  }

  /** What must hold at this point, whatever failed. */
  check(holds: boolean, claim: string): void {
    if (!holds) this.problems.push(`it does not hold that ${claim}`);
  }

  /**
   * What must be given back at the end. With two faults it may not be: the driver may refuse to take back what a call had got that failed for the
   * other, which nobody knows of then.
   */
  checkGivenBack(isGivenBack: boolean, claim: string): void {
    if (this.#faults === 1) this.check(isGivenBack, claim);
  }

  /** To be called by a function that the scenario gives to cistern; throws where it is its turn to fail. */
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

/** Where a block that ends by an error cannot dispose what it used, the language makes one error of both. */
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
