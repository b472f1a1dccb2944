//go:build race || !(linux && amd64)

package spin

import "sync"

// Lock is a sync.Mutex in this build, because the race detector does not see assembly, and
// processors other than amd64 order stores differently.
type Lock struct{ sync.Mutex }
