package dl

import "github.com/ebitengine/purego"

// Callback returns the address of a C function void(void*) that calls work with its argument. C may
// call it concurrently and from any thread. If work panics, the process exits.
//
// Callbacks are never freed, and a process can have only about two thousand. A package should
// create only one, and use the argument to distinguish its uses.
func Callback(work func(argument uintptr)) uintptr { return purego.NewCallback(work) }
