/** The folder of `cistern.h`, for the build of an addon. */
declare const folder: string;
export = folder;
