package dl

import "github.com/ebitengine/purego"

// Callback returns the address of a C function void(void*) that calls work with its argument, on
// any thread and concurrently. If work panics, the process exits.
//
// Callbacks are never freed, and a process can have only about two thousand.
func Callback(work func(argument uintptr)) uintptr { return purego.NewCallback(work) }
