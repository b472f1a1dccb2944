//go:build !race

package dl

// poolKeepsItems is true if sync.Pool keeps all items. Under the race detector it drops some.
const poolKeepsItems = true
