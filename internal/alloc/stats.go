package alloc

// counts are kept up to date by every call; bytes unless said otherwise.
type counts struct {
	live       int // blocks in the hands of callers
	segments   int // segments that are mapped
	used       int64
	requested  int64
	peak       int64 // highest used
	peakMapped int64 // highest mapped
	parked     int64
	deferred   int64
	pinned     int64
}

// Stats describes a Core at one moment. Sizes are bytes.
type Stats struct {
	Segments    int   // segments mapped
	Live        int   // blocks in the hands of callers
	Mapped      int64 // bytes of the segments
	MappedPeak  int64 // highest Mapped so far
	Used        int64 // bytes of blocks that are not free: live, parked and deferred
	UsedPeak    int64 // highest Used so far
	Requested   int64 // what callers asked for in Used
	Cached      int64 // bytes of free blocks: Mapped - Used
	LargestFree int64 // largest free block of any stream
	Deferred    int64 // bytes of deferred blocks
	Parked      int64 // bytes of parked blocks
	Pinned      int64 // bytes of blocks with pins, live or parked
}
