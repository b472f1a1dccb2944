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
func (ks *UseCounts) DeferUntilUnused(k, upon *UseCount, due func()) bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
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
func (ks *UseCounts) inUse(k *UseCount) bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	return k.users > 0
}

// release decrements use counts, and returns those that became 0 with something deferred. ks.mu is
// held.
func release(used []*UseCount) (due []*UseCount) {
	return slices.DeleteFunc(used, func(k *UseCount) bool {
		k.users--
		return k.users > 0 || k.deferred == nil
	})
}

// runDeferred does what was deferred, if nobody uses the thing still.
func (ks *UseCounts) runDeferred(k *UseCount) {
	for k != nil {
		ks.mu.Lock()
		due := k.deferred
		if k.users > 0 || due == nil {
			ks.mu.Unlock()
			return
		}
		k.deferred = nil
		ks.mu.Unlock()
		due()
		if k = k.dependsOn; k != nil {
			ks.mu.Lock()
			k.users--
			ks.mu.Unlock()
		}
	}
}

// End ends the holds of which the driver does not say when their graphs end.
func (ks *UseCounts) End() {
	ks.mu.Lock()
	endless := ks.withoutEnd
	ks.withoutEnd = nil
	ks.mu.Unlock()
	for _, h := range endless {
		h.end()
	}
}
