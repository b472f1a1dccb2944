// Package export converts symmem's traces to an archive for Perfetto, dumps in the format of
// PyTorch's Flight Recorder, and PyTorch memory snapshots.
//
// A trace contains the times at which calls were submitted, but not when collectives ended, and no
// times of allocations and frees. The exported files show each of these at the time of the
// preceding call.
package export
