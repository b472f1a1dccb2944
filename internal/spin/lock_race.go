//go:build race

package spin

import "sync"

// Lock is a mutual exclusion lock. The race detector sees no assembly, so under it this is a
// sync.Mutex.
type Lock struct{ sync.Mutex }
