//go:build !race

package nccl

// pooled tells that sync.Pool keeps what it is given; under the race detector it drops some of it.
const pooled = true
