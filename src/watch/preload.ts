import { watchFromEnvironment } from './watch-from-environment.js';

// What `cistern watch` has Node import before the program, which begins once the server listens.
await watchFromEnvironment();
