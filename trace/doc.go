// Package trace writes and reads the traces of ranks. A trace is a file with the events of a rank
// (see package event). It remains readable no matter how the process ends.
//
// symmem.Options.Trace makes a rank write a trace, and `symmem diff` compares traces. The file is
// mapped into memory, so an event is safe once Record has returned. It has a fixed size: new events
// replace the oldest when it is full. docs/reference/trace.md describes the format.
package trace
