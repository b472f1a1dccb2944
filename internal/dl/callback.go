package dl

import "github.com/ebitengine/purego"

// Callback returns the address of a C function void(void*) that calls work with its argument. C may
// call it concurrently and from any thread, even one that Go has not created.
//
// Callbacks are never freed, and a process can have about two thousand of them, so a package should
// create only one and distinguish its uses by the argument. A call takes a few microseconds, or
// about 100 on a thread that has never run Go. If work panics, the process exits.
func Callback(work func(argument uintptr)) uintptr { return purego.NewCallback(work) }
