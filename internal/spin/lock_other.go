//go:build race || !(linux && amd64)

package spin

import "sync"

// Lock is a sync.Mutex in this build.
type Lock struct{ sync.Mutex }
