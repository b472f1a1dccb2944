// Package trace writes and reads the traces of ranks. A trace is a file that contains the events
// of a rank (see package event) and remains readable no matter how the process ends.
//
// symmem.Options.Trace makes a rank write a trace, and `symmem diff` compares the traces of
// several ranks. A Source stores each event in a file that is mapped into memory. Once Record
// has returned, the event is in the file, even if the process is killed immediately afterwards.
// The file has a fixed size, which is allocated when it is created. When it is full, new events
// replace the oldest ones.
//
// docs/reference/trace.md describes the format in detail.
package trace
