/** What a file is that is no log, by its first bytes; `undefined` for a text, and if nobody knows. */
export function nameOfBytes(head: Uint8Array): string | undefined {
  const text = Buffer.from(head.subarray(0, 64)).toString('latin1').toLowerCase();
  return beginnings.find(([, ...texts]) => texts.some((beginning) => text.startsWith(beginning.toLowerCase())))?.[0];
}

const beginnings: readonly (readonly [name: string, ...beginnings: string[]])[] = [
  ['a ZIP archive, such as a checkpoint of PyTorch', 'PK\x03\x04'],
  ['a zstd archive', '\x28\xb5\x2f\xfd'],
  ['an xz archive', '\xfd7zXZ\0'],
  ['a bzip2 archive', 'BZh'],
  ['a report of Nsight Systems, which "nsys export --type sqlite" converts', 'QDSTRM', 'NSYS'],
  ['a Parquet file', 'PAR1'],
  ['an Arrow file', 'ARROW1'],
  ['an HDF5 file', '\x89HDF'],
  ['a program', '\x7fELF', 'MZ\x90', '\xcf\xfa\xed\xfe'],
  ['a picture', '\x89PNG', '\xff\xd8\xff', 'GIF8'],
  ['a PDF', '%PDF'],
  ['XML', '<?xml'],
  ['an HTML page, but no report of cistern', '<html', '<!-- '],
  ['a script', '#!/'],
];
