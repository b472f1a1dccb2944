//go:build !amd64

package reduce

// eachLevel calls run with the portable code, which is all there is.
func eachLevel(run func(name string)) { run("portable") }
