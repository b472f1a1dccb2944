//go:build !amd64

package reduce

// eachLevel calls run with the portable code, the only implementation.
func eachLevel(run func(name string)) { run("portable") }
