package alloc

// counts holds the counters from which Stats is computed, in bytes unless stated otherwise.
type counts struct {
	live       int   // number of live blocks
	segments   int   // number of mapped segments
	used       int64 // size of the blocks that are not free
	requested  int64 // bytes requested for the blocks counted in used
	peak       int64 // highest value of used so far
	peakMapped int64 // highest value of mapped so far
	parked     int64
	deferred   int64
	pinned     int64
}

// Stats contains a Core's counters.
type Stats struct {
	Segments    int   // mapped segments
	Live        int   // live blocks
	Mapped      int64 // bytes of the segments
	MappedPeak  int64 // highest value of Mapped so far
	Used        int64 // bytes of blocks that are not free: live, parked and deferred
	UsedPeak    int64 // highest value of Used so far
	Requested   int64 // bytes that callers requested for the blocks counted in Used
	Cached      int64 // bytes of free blocks: Mapped - Used
	LargestFree int64 // largest free block of any stream
	Deferred    int64 // bytes of deferred blocks
	Parked      int64 // bytes of parked blocks
	Pinned      int64 // bytes of pinned blocks, live or parked
}
