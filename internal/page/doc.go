// Package page makes web pages that show what the ranks of a job did: memory maps side by side,
// calls, the first difference, windows, pending work and faults.
//
// The producer of a [Page] fills it in: `symmem report` from files, or a server from a running job.
// [Page.WriteHTML] writes a self-contained file that needs no network. A server uses [WriteShell]
// to write a page without data, which then fetches the data that [Page.WriteData] writes.
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
// The header describes each column as [offset, length] in bytes, relative to the first column.
// Readers ignore columns and fields that they do not know. The data that a page contains or fetches
// are compressed with gzip; the page also accepts uncompressed data.
//
// A track contains the events of one pool or group on one rank. Each of its columns has one value
// per event:
//
//	kind     one byte: 1 alloc, 2 free, 3 free completed, 4 segment, 5 segment freed, 6 call,
//	         7 block that was allocated before the track
//	size     bytes requested; of a segment, its size
//	bytes    bytes that a block occupies or that a call transfers; 0 if unknown
//	offset   distance from the start of the segment, in bytes
//	segment  1 + index of the segment in the track; 0 if unknown
//	stream   number of the stream
//	block    1 + number of the block among the track's allocations, 0 if it is older than the track;
//	         of a call, the index of its text
//	stack    1 + index of the stack; 0 if there is none
//	number   number of the event in the rank's file
//	time     UTC in microseconds since 1970; 0 if unknown
//
// Column kind consists of bytes, the other columns consist of varints: seven bits per byte, the low
// ones first, with the high bit set in all bytes but the last. Columns block, number and time
// contain the difference from the previous event, as zigzag varints (0, -1, 1, -2 ... become 0, 1,
// 2, 3 ...). No value exceeds 2^53-1, so JavaScript represents all of them exactly.
//
// The page's column stacks contains, for each stack, the number of its frames and then the indexes
// of the frames, innermost first, all as varints.
//
// A request is an event of kind 1, 2 or 6. Ranks must make the same requests, so the page's
// horizontal axis counts requests: an event is drawn at the number of requests before it. The first
// request of a track has the number First. Until the ranks differ, equal numbers denote the same
// request.
//
// # Level of detail
//
// The page decodes a track when it is first shown, and computes its blocks and totals. Maps consist
// of tiles 256 pixels wide, at scales that are powers of two. A tile is painted once, when it first
// becomes visible, in slices of a few milliseconds; scrolling copies painted tiles. Blocks are
// indexed by the logarithm of their lifetime and by their beginning, so that painting a tile visits
// few blocks outside it. Curves use a pyramid of maxima.
package page
