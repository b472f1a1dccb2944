// Package trace writes and reads the traces of ranks. A trace is a file of events (see package
// event) that stays readable however the process ends.
//
// symmem.Options.Trace makes a rank write a trace, and `symmem diff` compares the traces of several
// ranks. A Source stores each event in a file that is mapped into memory, so the kernel has the
// event as soon as Record returns, even if the process is killed immediately afterwards. The file
// has a fixed size and is allocated when it is created. When it is full, new events replace the
// oldest ones.
//
// docs/reference/trace.md describes the format in detail.
package trace
