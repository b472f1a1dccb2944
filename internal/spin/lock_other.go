//go:build race || !(linux && amd64)

package spin

import "sync"

// Lock is a mutual exclusion lock, here a sync.Mutex: the race detector does not see assembly, and
// other processors order stores differently.
type Lock struct{ sync.Mutex }
