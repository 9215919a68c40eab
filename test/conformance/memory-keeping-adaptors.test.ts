import { conformanceTests } from './conformance-tests.js';
import { harnessesOf } from './harnesses.js';

for (const harness of harnessesOf('pooling')) conformanceTests(harness);
