//go:build invariants

package ranked

// current returns an identifier that is unique among the running goroutines.
func current() uintptr
