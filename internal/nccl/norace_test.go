//go:build !race

package nccl

// poolKeepsItems reports whether sync.Pool keeps all items. Under the race detector, it drops
// some.
const poolKeepsItems = true
