/** `cistern/outside`: what programs and libraries may tell `cistern run`, which records and limits them from outside. */
export { withAccount } from './with-account.js';
