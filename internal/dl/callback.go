package dl

import "github.com/ebitengine/purego"

// Callback returns the address of a C function void(void*) that calls work with its argument. C
// may call it from any thread, also one that Go did not make; several calls may run at once.
//
// A callback is never given back and a process can have about two thousand, so a package makes
// one and lets the argument say what to do. A call costs microseconds, and 100 of them on a
// thread that has never run Go. A panic in work ends the process.
func Callback(work func(argument uintptr)) uintptr { return purego.NewCallback(work) }
