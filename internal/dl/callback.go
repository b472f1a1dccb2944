package dl

import "github.com/ebitengine/purego"

// Callback returns the address of a C function void(void*) that calls work with its argument. C may
// call it from any thread, including threads not created by Go, and concurrently.
//
// A callback is never freed and a process can have about two thousand, so a package should create
// one and distinguish calls by the argument. A call takes microseconds, and 100 of them on a thread
// that has never run Go. A panic in work ends the process.
func Callback(work func(argument uintptr)) uintptr { return purego.NewCallback(work) }
