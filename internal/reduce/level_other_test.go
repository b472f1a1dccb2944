//go:build !amd64

package reduce

// forEachLevel calls run with the portable code, the only implementation.
func forEachLevel(run func(name string)) { run("portable") }
