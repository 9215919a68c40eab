/** Something that must not be, in a program that is right. */
export class Violation extends Error {}
