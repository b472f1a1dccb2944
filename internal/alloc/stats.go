package alloc

type counts struct {
	liveCount       int
	segmentCount    int
	usedBytes       int64 // blocks that are not free
	requestedBytes  int64 // sum of the requests
	peakUsedBytes   int64
	peakMappedBytes int64
	parkedBytes     int64
	deferredBytes   int64
	pinnedBytes     int64
}

// Stats contains a Core's counters. Sizes are in bytes.
type Stats struct {
	Segments    int
	Live        int
	Mapped      int64
	MappedPeak  int64
	Used        int64 // blocks that are not free: live, parked and deferred
	UsedPeak    int64
	Requested   int64 // sum of the requests
	Cached      int64
	LargestFree int64
	Deferred    int64
	Parked      int64
	Pinned      int64
}
