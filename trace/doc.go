// Package trace writes and reads traces of ranks: files of events (see package event) that stay
// readable however the process ends.
//
// symmem.Options.Trace makes a rank write a trace; `symmem diff` compares those of several ranks. A
// Source stores each event in a file that is mapped into memory, so the kernel has the event when
// Record returns, even if the process is killed immediately afterwards. The file has a fixed size
// and is allocated when it is created. When it is full, new events replace the oldest.
//
// docs/reference/trace.md describes the format in detail.
package trace
