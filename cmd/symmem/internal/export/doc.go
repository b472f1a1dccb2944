// Package export converts symmem's traces to files for other tools: an archive for Perfetto, dumps
// in the format of PyTorch's Flight Recorder, and PyTorch memory snapshots.
//
// A trace has a time for each event of a group, and no times for events of pools. It does not
// record when a collective ends, because the backend completes collectives without the process. The
// exported files therefore contain the times of submissions, and show events of pools at the time
// of the preceding event of a group.
//
// Each trace uses its machine's clock. The package measures how the clocks differ: see Clock.
package export
