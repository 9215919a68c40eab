import { watchFromEnvironment } from './watch-from-environment.js';

// `cistern watch` makes Node import this before the program, which starts once the server listens.
await watchFromEnvironment();
