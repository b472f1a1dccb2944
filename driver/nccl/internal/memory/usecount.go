package memory

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// UseCount counts the holds that use something, which is not given back before the count is 0. The
// zero value is ready.
type UseCount struct {
	users int // guarded by UseCounts.mu
	// deferred is the function to run once the object is unused. It uses dependsOn, which may be nil,
	// until then. Both are guarded by UseCounts.mu.
	deferred  func()
	dependsOn *UseCount
}

// UseCounts holds the lock that the use counts and holds of a device share.
type UseCounts struct {
	gpu *gpu.GPU

	mu         ranked.Mutex[useCountsMu]
	withoutEnd []*Hold // of which the driver does not say when they end; guarded by mu
}

// DeferUntilUnused runs a function once no hold uses k, and until then counts a use of dependsOn,
// unless that is nil. If k is unused it returns false, and the caller runs the function. An earlier
// deferred function stays.
func (uc *UseCounts) DeferUntilUnused(k, upon *UseCount, due func()) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if k.users == 0 {
		return false
	}
	if k.deferred == nil {
		k.deferred, k.dependsOn = due, upon
		if upon != nil {
			upon.users++
		}
	}
	return true
}

// inUse reports whether holds use something.
func (uc *UseCounts) inUse(k *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return k.users > 0
}

// release decrements use counts, and returns those that became 0 with something deferred. uc.mu is
// held.
func release(used []*UseCount) (due []*UseCount) {
	return slices.DeleteFunc(used, func(k *UseCount) bool {
		k.users--
		return k.users > 0 || k.deferred == nil
	})
}

// runDeferred runs the deferred function if the object is still unused.
func (uc *UseCounts) runDeferred(k *UseCount) {
	for k != nil {
		uc.mu.Lock()
		due := k.deferred
		if k.users > 0 || due == nil {
			uc.mu.Unlock()
			return
		}
		k.deferred = nil
		uc.mu.Unlock()
		due()
		if k = k.dependsOn; k != nil {
			uc.mu.Lock()
			k.users--
			uc.mu.Unlock()
		}
	}
}

// End ends the holds of which the driver does not say when their graphs end.
func (uc *UseCounts) End() {
	uc.mu.Lock()
	endless := uc.withoutEnd
	uc.withoutEnd = nil
	uc.mu.Unlock()
	for _, h := range endless {
		h.end()
	}
}
