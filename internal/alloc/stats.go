package alloc

// counts holds the counters behind Stats, in bytes unless stated otherwise.
type counts struct {
	live       int   // number of live blocks
	segments   int   // number of mapped segments
	used       int64 // size of the blocks that are not free
	requested  int64 // size that callers requested for the blocks in used
	peakUsed   int64
	peakMapped int64
	parked     int64
	deferred   int64
	pinned     int64
}

// Stats contains a Core's counters. Sizes are in bytes.
type Stats struct {
	Segments    int // number of segments
	Live        int // number of live blocks
	Mapped      int64
	MappedPeak  int64
	Used        int64 // size of the blocks that are not free: live, parked and deferred
	UsedPeak    int64
	Requested   int64 // size that callers requested for the blocks in Used
	Cached      int64
	LargestFree int64
	Deferred    int64
	Parked      int64
	Pinned      int64
}
