//go:build !race

package dl

// pooled reports whether sync.Pool keeps what it is given; under the race detector it drops some of
// it.
const pooled = true
