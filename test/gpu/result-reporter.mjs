/**
 * Appends a line of JSON for each test to the file that `CISTERN_TEST_RESULTS` names when the test
 * ends, so that nothing is lost in a crash.
 */
import { appendFileSync } from 'node:fs';
import { hashOfFile } from './seen.mjs';

class ResultReporter {
  onTestCaseResult(test) {
    const { state, note, errors } = test.result();
    const file = test.module.relativeModuleId ?? test.module.moduleId;
    write({ file, name: test.fullName, state, note, message: errors?.map(({ message }) => message).join('\n') });
  }

  onTestModuleEnd(module) {
    const messages = module.errors().map(({ message }) => message);
    const file = module.relativeModuleId;
    if (messages.length > 0) write({ file, name: 'the file', state: 'failed', message: messages.join('\n') });
    const seconds = Math.round(module.diagnostic().duration / 10) / 100;
    write({ file, name: 'the file itself', progress: 'ended', hash: hashOfFile(module.moduleId), seconds });
  }

  onTestRunEnd(_modules, errors, reason) {
    for (const { message, stack } of errors) write({ file: '', name: 'outside any test', state: 'failed', message: message || stack });
    write({ end: reason });
  }
}

// biome-ignore lint/style/noDefaultExport: a reporter that is given by its path is a default export
export default ResultReporter;

function write(line) {
  appendFileSync(process.env.CISTERN_TEST_RESULTS, `${JSON.stringify(line)}\n`);
}
