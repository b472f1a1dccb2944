// Package export converts symmem's traces to files for other tools: an archive for Perfetto, dumps
// in the format of PyTorch's Flight Recorder, and PyTorch memory snapshots.
//
// Traces contain the times at which calls were submitted, but not the times at which collectives
// ended. They contain no times of pool events, that is, of allocations and frees. The exported
// files show each pool event at the time of the preceding event of a group.
//
// Each trace uses the clock of its machine. Clock describes how the package measures the
// differences.
package export
