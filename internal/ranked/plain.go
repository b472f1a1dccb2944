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
type Spin[C Class] struct{ biased }

// biased embeds a spin.Lock under a name that does not collide with its methods.
type biased = spin.Lock

// Waiting is called before the caller waits for another rank.
func Waiting() {}

// Unlocked documents that the caller holds no lock.
func Unlocked() {}
