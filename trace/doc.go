// Package trace writes and reads traces of ranks: files of events (see package event) that stay
// readable however the process ends.
//
// symmem.Options.Trace makes a rank write one; `symmem diff` compares those of several ranks. A
// Source stores each event in a file that is mapped into memory, so the kernel has the event when
// Record returns, even if the process is killed then. The file has a fixed size, which is allocated
// when it is created. When it is full, new events replace the oldest.
//
// docs/reference/trace.md describes the format byte by byte.
package trace
