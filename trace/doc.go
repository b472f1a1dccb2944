// Package trace writes and reads the traces of ranks. A trace is a file that contains the events of
// a rank (see package event) and remains readable no matter how the process ends.
//
// symmem.Options.Trace makes a rank write a trace, and `symmem diff` compares the traces of several
// ranks. A Source stores each event in a file that is mapped into memory, so an event is safe once
// Record has returned. The file has a fixed size. When it is full, new events replace the oldest
// ones. docs/reference/trace.md describes the format.
package trace
