//go:build race

package dl

// pooled reports whether sync.Pool keeps all items. Under the race detector it drops some.
const pooled = false
