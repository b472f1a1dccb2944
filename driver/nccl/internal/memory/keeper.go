package memory

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// Keeper keeps something as long as holds use it. The zero value is ready.
type Keeper struct {
	users int // guarded by Keepers.mu
	// due is what was put off until nobody uses it, which itself uses upon, or nil; guarded by
	// Keepers.mu.
	due  func()
	upon *Keeper
}

// Keepers is what the keepers and holds of a device have in common.
type Keepers struct {
	gpu *gpu.GPU

	mu      ranked.Mutex[keepersMu]
	endless []*Hold // of which the driver does not say when they end; guarded by mu
}

// PutOff has something done once no hold uses k, and keeps upon until then, unless it is nil. It
// reports false where nobody uses k: then the caller does it. What was put off before stays.
func (ks *Keepers) PutOff(k, upon *Keeper, due func()) bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if k.users == 0 {
		return false
	}
	if k.due == nil {
		k.due, k.upon = due, upon
		if upon != nil {
			upon.users++
		}
	}
	return true
}

// inUse reports whether holds use something.
func (ks *Keepers) inUse(k *Keeper) bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	return k.users > 0
}

// drop takes a user off keepers, and returns those of which something is due now. ks.mu is held.
func drop(used []*Keeper) (due []*Keeper) {
	return slices.DeleteFunc(used, func(k *Keeper) bool {
		k.users--
		return k.users > 0 || k.due == nil
	})
}

// runDue does what was put off, if nobody uses the thing still.
func (ks *Keepers) runDue(k *Keeper) {
	for k != nil {
		ks.mu.Lock()
		due := k.due
		if k.users > 0 || due == nil {
			ks.mu.Unlock()
			return
		}
		k.due = nil
		ks.mu.Unlock()
		due()
		if k = k.upon; k != nil {
			ks.mu.Lock()
			k.users--
			ks.mu.Unlock()
		}
	}
}

// End ends the holds of which the driver does not say when their graphs end.
func (ks *Keepers) End() {
	ks.mu.Lock()
	endless := ks.endless
	ks.endless = nil
	ks.mu.Unlock()
	for _, h := range endless {
		h.end()
	}
}
