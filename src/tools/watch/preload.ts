import { watchFromEnvironment } from './watch-from-environment.js';

// `cistern watch` makes Node import this module first; the program starts once the server listens.
await watchFromEnvironment();
