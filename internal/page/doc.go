// Package page makes web pages that show what the ranks of a job did: memory maps of the ranks,
// their calls, the first difference between them, windows, pending work and faults.
//
// A [Page] holds the contents. `symmem report` fills it from files, and a server (package live)
// fills it from a running job. [Page.WriteHTML] writes a self-contained file that needs no
// network. A server instead uses [WriteShell] to write a page without data, which then fetches
// the data from the server, where [Page.WriteData] writes them.
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
// Readers ignore columns and fields that they do not know. WriteHTML compresses the data with
// gzip. The page accepts both compressed and uncompressed data.
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
// The column kind consists of bytes. The other columns consist of varints: seven bits per byte,
// the low ones first, with the high bit set in all bytes but the last. The columns block, number
// and time contain differences from the previous event, as zigzag varints (0, -1, 1, -2 ...
// become 0, 1, 2, 3 ...). No value exceeds 2^53-1, so that JavaScript can represent all of them
// exactly.
//
// The column stacks belongs to the page rather than to a track. It contains, for each stack, the
// number of its frames and then the indexes of the frames, innermost first, all as varints.
//
// A request is an event of kind 1, 2 or 6. Because ranks must make the same requests, the
// horizontal axis of the page counts requests: the position of an event is the number of requests
// before it. The first request of a track has the number First. Until the ranks differ, the same
// number denotes the same request on all ranks.
//
// # Level of detail
//
// When a track is first shown, the page decodes it and computes its blocks and totals. Maps
// consist of tiles that are 256 pixels wide, at scales that are powers of two. A tile is painted
// when it first becomes visible, in slices of a few milliseconds. Scrolling only copies tiles
// that have been painted. Blocks are indexed by the logarithm of their lifetime and by their
// beginning, so that painting a tile visits few blocks outside it. Curves are drawn from a
// pyramid of maxima.
package page
