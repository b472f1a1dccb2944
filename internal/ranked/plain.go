//go:build !invariants

package ranked

import (
	"sync"

	"symmem/internal/spin"
)

// Mutex is a sync.Mutex with a class.
type Mutex[C Class] struct{ sync.Mutex }

// RWMutex is a sync.RWMutex with a class.
type RWMutex[C Class] struct{ sync.RWMutex }

// Spin is a spin.Lock with a class.
type Spin[C Class] struct{ spinLock }

// A field named Lock would hide the method Lock.
type spinLock = spin.Lock

// AssertMayWait must precede every wait for another process. In this build, it does nothing.
func AssertMayWait() {}

// AssertUnlocked must precede every call of a user's callback. In this build, it does nothing.
func AssertUnlocked() {}
