/**
 * Where the free-space index keeps what in the linear memory of its WebAssembly module. Both sides
 * use this file: the module (`assembly/`), which changes the data, and TypeScript, which reads it to
 * list and to validate blocks. All offsets are in bytes, and all pointers are positive.
 */

/** The binary logarithm of the bytes of one unit, which is the alignment of every block. */
export const unitBits = 8;
/** The largest block and segment, in units: 512 GiB - 256 B. */
export const maximumUnits = 0x7fffffff;

// Sizes below 2^divisionBits · 2 units have a class of their own; above, every power of two is
// divided into 2^divisionBits classes. Group 0 holds the sizes below 2^divisionBits, group g > 0
// those from 2^(divisionBits + g - 1).
export const divisionBits = 5;
export const divisions = 32;
export const groups = 27;
export const classes = 864;

// An index: 192 bytes.
/** The number of used blocks. */
export const usedCountField = 0;
/** The table of used blocks: its buckets, and how many bits of a hash a bucket's number leaves out. */
export const bucketsField = 4;
export const bucketShiftField = 8;
/** The binary logarithm of the bytes of the table. */
export const bucketsOrderField = 12;
export const firstSegmentField = 16;
export const lastSegmentField = 20;
/** The segment at which the search for a free one continues, or 0 for the first. */
export const nextCandidateField = 24;
export const segmentCountField = 28;
export const firstLaneField = 32;
/** The notices of shared lanes. */
export const noticesField = 36;
/**
 * Which block `allocate` takes: 0, the smallest of the first few that fit; `lowestFit`, the lowest of them; or the
 * reserve, a lane, with what `keepReserve` was given.
 */
export const fitField = 40;
export const lowestFit = 1;
export const largestFitField = 44;
/** A double. */
export const plentyField = 48;
/** The units of all used blocks, an integer of 64 bits. */
export const usedUnitsField = 56;
/** The credit of the quick lists; if negative, how many frees pass before they are used again. */
export const quickCreditField = 64;
/** The number of buckets. */
export const bucketCountField = 68;
/** What the quick lists do (`assembly/quick-lists.ts`), and the value while they keep blocks. */
export const quickModeField = 72;
export const quickKeeping = 2;
/** The open lane, or 0. */
export const openLaneField = 76;
/** The quick lists: four, each of four entries in 16 bytes. */
export const quickListsField = 128;
export const quickListsBytes = 64;

// A lane. What most calls touch stands in its first cache line.
/** One bit for each group that has a block. */
export const groupBitsField = 0;
/** Whether other streams may take from the lane. */
export const isSharedField = 4;
/** The table of notices of the lane's index. */
export const laneNoticesField = 8;
export const nextLaneField = 12;
/** By group: one bit for each of its lists that has a block. */
export const listBitsField = 16;
/** By group, in turn with those: one bit for each of its lists that a notice names. */
export const noticeBitsField = 20;
/** The binary logarithm of the bytes from the bits of one group to those of the next. */
export const groupShift = 3;
/** By class: the first free block. */
export const headsField = 256;
/**
 * The bytes of a lane or a table of notices: an odd number of cache lines of 64 bytes, so that the same
 * fields of many lanes do not compete for a few sets of the processor's caches.
 */
export const tableBytes = 3776;

// The table of notices: the same bits and heads as in a lane, of lists of notices.
/** The two lanes that the last search for the largest block left out, and the list where it ended. */
export const searcherField = 4;
export const secondSearcherField = 8;
export const searchedField = 12;
// A notice: 8 bytes.
export const noticeLaneField = 0;
export const nextNoticeField = 4;

// A block: 32 bytes.
/** In units. */
export const sizeField = 0;
/** The block before this one; `~segment`, which is negative, in the first block of a segment. */
export const previousField = 4;
/** The block after this one; `~segment` in the last block of a segment. */
export const nextField = 8;
/** Of a free block: the previous one in its list, or 0. */
export const previousFreeField = 12;
/** Of a used block. */
export const ownerField = 12;
/** Of a free block: the next one in its list, or 0. */
export const nextFreeField = 16;
/** Of a used block: the next one in its bucket, or 0. */
export const nextUsedField = 16;
/**
 * The lane of a free block, a pointer, plus 1 if it is in a quick list; `~slack` of a used one, which is
 * negative. Slack is the number of bytes that nobody asked for.
 */
export const stateField = 20;
/** A double. */
export const addressField = 24;

// A segment: 32 bytes.
export const firstBlockField = 0;
export const lastBlockField = 4;
export const previousSegmentField = 8;
export const nextSegmentField = 12;
