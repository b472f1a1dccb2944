package memory

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// UseCount counts the users of an object, which must not be freed before the count is 0.
type UseCount struct {
	users int // guarded by UseCounts.mu
	// deferred frees the object once it is no longer in use. Until deferred has returned, the
	// object counts as a user of dependsOn. UseCounts.mu guards both.
	deferred  func()
	dependsOn *UseCount
}

// UseCounts guards a device's use counts and holds.
type UseCounts struct {
	gpu *gpu.GPU

	mu ranked.Mutex[useCountsMu]
	// endWithDevice lists holds of graphs whose destruction the driver does not report.
	endWithDevice []*Hold
}

// DeferUntilUnused returns false if u has no users. The caller must then call free. Otherwise, free
// is called once there are none left. Until free has returned, u counts as a user of dependsOn,
// which may be nil. If a function is already deferred for u, free is dropped.
func (uc *UseCounts) DeferUntilUnused(u, dependsOn *UseCount, free func()) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.users == 0 {
		return false
	}
	if u.deferred == nil {
		u.deferred, u.dependsOn = free, dependsOn
		if dependsOn != nil {
			dependsOn.users++
		}
	}
	return true
}

func (uc *UseCounts) inUse(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.users > 0
}

// release decrements the use counts, and returns those that have become 0 and have a deferred
// function. The caller must hold UseCounts.mu.
func release(used []*UseCount) (unused []*UseCount) {
	return slices.DeleteFunc(used, func(u *UseCount) bool {
		u.users--
		return u.users > 0 || u.deferred == nil
	})
}

// runDeferred runs u's deferred function if u is still unused. It then does the same for
// u.dependsOn.
func (uc *UseCounts) runDeferred(u *UseCount) {
	for u != nil {
		uc.mu.Lock()
		free := u.deferred
		if u.users > 0 || free == nil {
			uc.mu.Unlock()
			return
		}
		u.deferred = nil
		uc.mu.Unlock()
		free()
		if u = u.dependsOn; u != nil {
			uc.mu.Lock()
			u.users--
			uc.mu.Unlock()
		}
	}
}

// EndHolds ends the holds in endWithDevice.
func (uc *UseCounts) EndHolds() {
	uc.mu.Lock()
	holds := uc.endWithDevice
	uc.endWithDevice = nil
	uc.mu.Unlock()
	for _, h := range holds {
		h.end()
	}
}
