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
	// deferred is what is deferred until nobody uses it, which itself uses dependsOn, or nil; guarded
	// by UseCounts.mu.
	deferred  func()
	dependsOn *UseCount
}

// UseCounts is what the use counts and holds of a device share: their lock.
type UseCounts struct {
	gpu *gpu.GPU

	mu         ranked.Mutex[useCountsMu]
	withoutEnd []*Hold // of which the driver does not say when they end; guarded by mu
}

// DeferUntilUnused has a function called once no hold uses k, and counts a use of dependsOn until
// then, unless that is nil. It returns false where nobody uses k: then the caller calls it. What
// was deferred before stays.
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

// runDeferred does what was deferred, if nobody uses the thing still.
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
