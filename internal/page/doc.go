// Package page makes web pages that show what the ranks of a job did: memory maps of the ranks,
// their calls, the first difference between them, windows, pending work and faults.
//
// # Data
//
// The data consist of a header and columns. Integers outside columns are little-endian.
//
//	offset  bytes
//	0       8      "SYMPAGE" and the version of the format, 1
//	8       4      length n of the header
//	12      n      header: the JSON object of a Page
//	12+n           columns
//
// The header describes each column as [offset, length] in bytes, relative to the first column. The
// data can be compressed with gzip.
//
// A track contains the events of one pool or group on one rank. Each of its columns has one value
// per event:
//
//	kind     1 alloc, 2 free, 3 free completed, 4 segment, 5 segment freed, 6 call,
//	         7 block that was allocated before the track
//	size     requested bytes, or the size of a segment
//	bytes    bytes that a block occupies or that a call transfers; 0 if unknown
//	offset   in the segment, in bytes
//	segment  1 + index of the segment in the track; 0 if unknown
//	stream   number of the stream
//	block    1 + number of the allocation in the track; 0 if the allocation is older than the track;
//	         for a call, the index of its text
//	stack    1 + index of the stack; 0 if there is no stack
//	number   number of the event in the rank's file
//	time     UTC in microseconds since 1970; 0 if unknown
//
// The column kind consists of bytes. The others consist of varints: seven bits per byte, the low
// bits first, with the high bit set in all bytes but the last. The columns block, number and time
// contain differences from the previous event as zigzag varints (0, -1, 1, -2 become 0, 1, 2, 3).
// No value exceeds 2^53-1, the limit for integers in JavaScript.
//
// The column stacks belongs to the page. For each stack, it contains the number of frames and the
// indexes of the frames, innermost first.
//
// A request is an event of kind 1, 2 or 6. All ranks must make the same requests.
package page
