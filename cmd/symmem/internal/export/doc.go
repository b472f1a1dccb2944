// Package export converts symmem's traces into files that other tools read: an archive for
// Perfetto, dumps of PyTorch's Flight Recorder, and PyTorch's memory snapshots.
//
// A trace has a time for each event of a group, and none for the events of pools. It has no end of
// a collective, because the backend completes collectives without the process. The exported files
// therefore contain the times of submissions, and memory at the time of the preceding event of a
// group.
//
// Each trace has the clock of its machine. The package measures how clocks differ: see Clock.
package export
