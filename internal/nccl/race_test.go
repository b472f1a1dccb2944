//go:build race

package nccl

// pooled reports whether sync.Pool keeps what it is given; under the race detector it drops some of
// it.
const pooled = false
