//go:build !invariants

package ranked

import (
	"sync"

	"symmem/internal/spin"
)

// Mutex is a sync.Mutex of a class.
type Mutex[C Class] struct{ sync.Mutex }

// RWMutex is a sync.RWMutex of a class.
type RWMutex[C Class] struct{ sync.RWMutex }

// Spin is a spin.Lock of a class.
type Spin[C Class] struct{ biased }

// biased is an embedded spin.Lock by a name that is none of its methods.
type biased = spin.Lock

// Waiting says that the caller is about to wait for another rank.
func Waiting() {}
