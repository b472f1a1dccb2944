//go:build race || !(linux && amd64)

package spin

import "sync"

// Lock is a mutual exclusion lock: a sync.Mutex here. The race detector sees no assembly, and other
// processors order stores in another way.
type Lock struct{ sync.Mutex }
