package dl

import "github.com/ebitengine/purego"

// Callback returns the address of a C function void(void*) that calls work with its argument. C
// may call it concurrently and from any thread, even from one that Go has not created.
//
// Callbacks are never freed, and a process can have only about two thousand of them. A package
// should therefore create only one, and use the argument to distinguish its uses. A call takes a
// few microseconds, or about 100 microseconds on a thread that has never run Go. If work panics,
// the process exits.
func Callback(work func(argument uintptr)) uintptr { return purego.NewCallback(work) }
