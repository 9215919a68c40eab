import { setImmediate } from 'node:timers/promises';
import fc from 'fast-check';
import { type Program, programs } from './program.js';
import { describeViolation, type ProgramCounts, ProgramRunner } from './program-runner.js';

/** Which programs to run. */
export interface ProofOptions {
  readonly programs: number;
  /** The same seed gives the same programs. */
  readonly seed: number;
  /** Starts at one program, whose path an earlier run with the same seed printed. */
  readonly path?: string | undefined;
  /**
   * Whether to search for the smallest program with a violation.
   * @defaultValue true
   */
  readonly shrinks?: boolean;
  /** Called now and then with the number of programs run. */
  readonly onProgress?: (programs: number) => void;
}

/** The outcome. */
export interface Proof {
  readonly counts: ProgramCounts;
  readonly seconds: number;
  /** The smallest program found to have a violation. */
  readonly violation: Violated | undefined;
}

interface Violated {
  readonly program: Program;
  /** Finds the program again, as the path with the same seed. */
  readonly path: string;
  readonly description: string;
}

/**
 * After this many programs the event loop has a turn, so that what is no longer referenced is given
 * back.
 */
const turn = 64;

/** After this many programs garbage is collected, and nothing of them may be left. */
const collection = 1024;

/** Runs random programs until one has a violation, and looks for the smallest that has it. */
export async function prove(options: ProofOptions): Promise<Proof> {
  const { programs: count, seed, path = '', onProgress } = options;
  const started = performance.now();
  using runner = new ProgramRunner();
  let hasFailed = false;
  const property = fc.asyncProperty(programs(), async (program) => {
    // Do not look for leaks of a program with a violation.
    const mayCollect = !hasFailed;
    hasFailed = true;
    runner.run(program);
    if (runner.isReading) await runner.settle();
    hasFailed = !mayCollect;
    if (runner.counts.programs % turn !== 0) return;
    onProgress?.(runner.counts.programs);
    await setImmediate();
    if (mayCollect && runner.counts.programs % collection === 0) await runner.collect();
  });
  const details = await fc.check(property, {
    numRuns: count,
    seed,
    path,
    reporter: () => {},
    endOnFailure: options.shrinks === false,
  });
  const seconds = (performance.now() - started) / 1000;
  const { counterexample, counterexamplePath, errorInstance } = details;
  if (!details.failed) return { counts: { ...runner.counts }, seconds, violation: undefined };
  const [program] = counterexample as [Program];
  return {
    counts: { ...runner.counts },
    seconds,
    violation: { program, path: counterexamplePath ?? '', description: describeViolation(errorInstance) },
  };
}

/** The outcome for people: the violation, if there was one, and one summary line. */
export function formatProof({ counts, seconds, violation }: Proof, seed: number): string {
  const number = (value: number) => value.toLocaleString('en-US');
  const did = [
    `${number(counts.allocations)} allocations`,
    `${number(counts.refusals)} refused`,
    `${number(counts.reuses)} blocks to another stream`,
    `${number(counts.synchronizations)} waits for memory`,
    `${number(counts.callbacks)} callbacks`,
    `${number(counts.oldFences)} old fences`,
    `${number(counts.freesOff)} frees under 'off'`,
    `${number(counts.buffers)} buffers`,
    `${number(counts.bufferSteps)} steps of buffers`,
    `${number(counts.misuses)} wrong calls`,
  ];
  const found =
    violation === undefined
      ? []
      : [violation.description, JSON.stringify(violation.program), `again: npm run prove -- --seed ${seed} --path ${violation.path}`];
  return [
    ...found,
    `${number(counts.programs)} programs, ${number(counts.steps)} steps, ${violation === undefined ? 0 : 1} violations, seed ${seed}, ${seconds.toFixed(1)} s`,
    `(${did.join(', ')})`,
  ].join('\n');
}
