package alloc

// counts holds the counters for Stats.
type counts struct {
	liveCount       int   // number of live blocks
	segmentCount    int   // number of mapped segments
	usedBytes       int64 // size of all blocks that are not free
	requestedBytes  int64 // size that callers requested for these blocks
	peakUsedBytes   int64
	peakMappedBytes int64
	parkedBytes     int64
	deferredBytes   int64
	pinnedBytes     int64
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
