package dl

import "github.com/ebitengine/purego"

// Callback returns the address of a C function void(void*) that calls work with its argument. C may
// call the function concurrently and from any thread, even if Go has not created the thread.
//
// Callbacks are never freed, and a process can have about two thousand. Therefore a package should
// create one and distinguish its uses by the argument. A call takes a few microseconds. On a thread
// that has never run Go, it takes about 100. A panic in work ends the process.
func Callback(work func(argument uintptr)) uintptr { return purego.NewCallback(work) }
