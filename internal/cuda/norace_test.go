//go:build !race

package cuda

// pooled reports whether sync.Pool keeps all items. Under the race detector it drops some.
const pooled = true
