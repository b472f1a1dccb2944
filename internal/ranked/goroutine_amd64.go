//go:build invariants

package ranked

// current identifies the running goroutine among those that run.
func current() uintptr
