// Package export converts symmem's traces to files for other tools: an archive for Perfetto, dumps
// in the format of PyTorch's Flight Recorder, and PyTorch memory snapshots.
//
// A trace contains a time for each event of a group, but none for the events of pools. It does not
// record when a collective ends, because the backend completes collectives without involving the
// process. The exported files therefore contain the times at which calls were submitted, and show
// each pool event at the time of the preceding group event.
//
// Each trace uses the clock of its machine. The package measures how these clocks differ: see
// Clock.
package export
