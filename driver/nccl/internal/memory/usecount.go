package memory

import (
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// UseCount delays freeing an object while CUDA graphs use it: an arena, a segment, or a window
// (memory registered with NCCL). For example, while a graph of PyTorch uses a segment, unmapping
// the segment and closing its arena are deferred. UseCounts.mu guards the fields.
type UseCount struct {
	userCount    int
	deferredFree func() error // called once userCount is 0; nil if no free is pending
	dependsOn    *UseCount    // object that must be freed after this one, or nil

	// A plain call is a call in a graph on memory outside windows. Each one counts as a user. NCCL may
	// map the memory on other ranks, and must unmap it there before it is freed or suspended.

	plainCallCount int  // users that are plain calls
	mayBeMapped    bool // whether other ranks may have mapped the object for a plain call
}

// UseCounts guards all use counts of a device.
type UseCounts struct {
	gpu *gpu.GPU

	mu              ranked.Mutex[useCountsMu] // also guards fields of Hold and Holds
	holdsUntilClose []*Hold                   // for graphs whose destruction CUDA does not report
}

// DeferUntilUnused defers a call of free until u has no users. It returns false if u has none now,
// and the caller must then call free itself. Only the first deferral for u counts.
//
// Unless dependsOn is nil, u is a user of dependsOn until free has returned. The next GPU.Reclaim
// reports the error of free.
func (uc *UseCounts) DeferUntilUnused(
	u, dependsOn *UseCount, free func() error,
) (isDeferred bool) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.userCount == 0 {
		return false
	}

	if u.deferredFree == nil {
		u.deferredFree = free
		u.dependsOn = dependsOn
		if dependsOn != nil {
			dependsOn.userCount++
		}
	}

	return true
}

func (uc *UseCounts) hasUsers(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.userCount > 0
}

// decrementAll removes one user for each entry, and returns the objects whose deferred free must
// run now. The caller must hold UseCounts.mu.
func decrementAll(useCounts []*UseCount) (unused []*UseCount) {
	for _, u := range useCounts {
		u.userCount--
		if u.userCount == 0 && u.deferredFree != nil {
			unused = append(unused, u)
		}
	}

	return unused
}

// runAllDeferred calls runDeferred for each object. The caller must not hold mu.
func (uc *UseCounts) runAllDeferred(unused []*UseCount) {
	for _, u := range unused {
		uc.runDeferred(u)
	}
}

// runDeferred frees an object and then follows dependsOn, up to an object that still has users or
// has no deferred free.
func (uc *UseCounts) runDeferred(u *UseCount) {
	for u != nil {
		free := uc.takeDeferred(u)
		if free == nil {
			return
		}

		if err := free(); err != nil {
			uc.gpu.ReportInReclaim(err)
		}

		dependsOn := u.dependsOn
		if dependsOn != nil {
			uc.mu.Lock()
			dependsOn.userCount--
			uc.mu.Unlock()
		}

		u = dependsOn
	}
}

// takeDeferred returns the deferred free of an object without users, or nil. It clears
// deferredFree, so that only one goroutine calls it.
func (uc *UseCounts) takeDeferred(u *UseCount) (free func() error) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.userCount > 0 {
		return nil
	}

	free = u.deferredFree
	u.deferredFree = nil
	return free
}

// AddPlainCalls adds a plain call for each entry of useCounts. Entries may repeat.
func (uc *UseCounts) AddPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	for _, u := range useCounts {
		u.userCount++
		u.plainCallCount++
		u.mayBeMapped = true
	}
}

// EndPlainCalls undoes AddPlainCalls after the graph has been destroyed, and runs deferred frees.
// It may wait for other ranks.
func (uc *UseCounts) EndPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	unused := uc.removePlainCalls(useCounts)
	uc.mu.Unlock()
	uc.runAllDeferred(unused)
}

// removePlainCalls is decrementAll for plain calls. The caller must hold mu.
func (uc *UseCounts) removePlainCalls(useCounts []*UseCount) (unused []*UseCount) {
	for _, u := range useCounts {
		u.plainCallCount--
	}

	return decrementAll(useCounts)
}

func (uc *UseCounts) hasPlainCalls(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.plainCallCount > 0
}

// releaseOnPeers makes NCCL unmap the object on other ranks, where destroyed graphs may have left
// it mapped. It does nothing while the object has plain calls. isUnmapping is set if the caller
// unmaps the object even after an error.
func (m *Memory) releaseOnPeers(u *UseCount, isUnmapping bool) error {
	if !m.NCCLMapsCaptured { // NCCL maps no memory for plain calls
		return nil
	}

	mustRelease := m.UseCounts.clearMayBeMapped(u)
	if !mustRelease {
		return nil
	}

	err := m.ReleaseCaptured(isUnmapping)
	if err != nil { // the object may still be mapped
		m.UseCounts.mu.Lock()
		defer m.UseCounts.mu.Unlock()
		u.mayBeMapped = true
	}

	return err
}

// clearMayBeMapped clears mayBeMapped if no plain calls are left. It returns false if mayBeMapped
// stays unchanged.
func (uc *UseCounts) clearMayBeMapped(u *UseCount) (isCleared bool) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if !u.mayBeMapped || u.plainCallCount > 0 {
		return false
	}

	u.mayBeMapped = false
	return true
}

// EndRemainingHolds ends holdsUntilClose. Call it when the device is closed.
func (uc *UseCounts) EndRemainingHolds() {
	uc.mu.Lock()
	holds := uc.holdsUntilClose
	uc.holdsUntilClose = nil
	uc.mu.Unlock()
	for _, h := range holds {
		h.end()
	}
}
