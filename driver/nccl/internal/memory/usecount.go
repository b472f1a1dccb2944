package memory

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// UseCount counts the users of an object, which must not be freed before the count is 0. The zero
// value is ready to use.
type UseCount struct {
	users int // guarded by UseCounts.mu
	// deferred frees the object once it is unused. Until it has returned, the object counts as a user
	// of dependsOn, unless that is nil. Both are guarded by UseCounts.mu.
	deferred  func()
	dependsOn *UseCount
}

// UseCounts holds the lock that the use counts and holds of a device share.
type UseCounts struct {
	gpu *gpu.GPU

	mu         ranked.Mutex[useCountsMu]
	withoutEnd []*Hold // holds of graphs whose end the driver does not report; guarded by mu
}

// DeferUntilUnused defers free until k has no users, and counts k as a user of dependsOn, which may
// be nil, until then. If k is unused it returns false, and the caller has to call free. If a
// function is deferred already, free is dropped.
func (uc *UseCounts) DeferUntilUnused(k, dependsOn *UseCount, free func()) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if k.users == 0 {
		return false
	}
	if k.deferred == nil {
		k.deferred, k.dependsOn = free, dependsOn
		if dependsOn != nil {
			dependsOn.users++
		}
	}
	return true
}

// inUse reports whether an object has users.
func (uc *UseCounts) inUse(k *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return k.users > 0
}

// release decrements use counts, and returns those that became 0 and have a deferred function.
// UseCounts.mu is held.
func release(used []*UseCount) (unused []*UseCount) {
	return slices.DeleteFunc(used, func(k *UseCount) bool {
		k.users--
		return k.users > 0 || k.deferred == nil
	})
}

// runDeferred runs the deferred function of k if k is still unused. Then it releases k's use of the
// object that k depends on, and does the same for that object.
func (uc *UseCounts) runDeferred(k *UseCount) {
	for k != nil {
		uc.mu.Lock()
		free := k.deferred
		if k.users > 0 || free == nil {
			uc.mu.Unlock()
			return
		}
		k.deferred = nil
		uc.mu.Unlock()
		free()
		if k = k.dependsOn; k != nil {
			uc.mu.Lock()
			k.users--
			uc.mu.Unlock()
		}
	}
}

// End ends the holds of graphs whose end the driver does not report.
func (uc *UseCounts) End() {
	uc.mu.Lock()
	holds := uc.withoutEnd
	uc.withoutEnd = nil
	uc.mu.Unlock()
	for _, h := range holds {
		h.end()
	}
}
