package memory

import (
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// UseCount keeps an object from being freed while CUDA graphs use it. The object is an arena, a
// segment, or a window (memory registered with NCCL). For example, while a graph of PyTorch uses a
// segment, unmapping it and closing its arena are deferred. UseCounts.mu guards the fields.
type UseCount struct {
	userCount    int          // graphs, plain calls, and objects that depend on this one
	deferredFree func() error // called once userCount is 0; nil if no free is pending
	dependsOn    *UseCount    // object that must be freed after this one, or nil

	// A plain call is a call in a graph on memory outside windows. NCCL may map this memory on other
	// ranks, and must unmap it there before the memory is freed or suspended.

	plainCallCount int  // users that are plain calls
	mayBeMapped    bool // whether other ranks may have mapped the object for a plain call
}

// UseCounts guards all use counts of a device.
type UseCounts struct {
	gpu *gpu.GPU

	mu              ranked.Mutex[useCountsMu] // also guards fields of Hold and Holds
	holdsUntilClose []*Hold                   // for graphs whose destruction CUDA does not report
}

// DeferUntilUnused defers a call of free until u has no users. The next GPU.Reclaim then returns
// the error of free. Until free has returned, u is a user of dependsOn, if not nil. Later calls for
// u do not replace free.
//
// If u has no users now, DeferUntilUnused returns false, and the caller must call free.
func (uc *UseCounts) DeferUntilUnused(
	u, dependsOn *UseCount, free func() error,
) (isDeferred bool) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.userCount == 0 {
		return false
	}

	isFirstCall := u.deferredFree == nil
	if isFirstCall {
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

// removeUsers removes a user for each entry. It returns the objects that are now unused and have a
// deferred free. The caller must hold UseCounts.mu and then pass them to freeAllUnused.
func removeUsers(useCounts []*UseCount) (unused []*UseCount) {
	for _, u := range useCounts {
		u.userCount--
		if u.userCount == 0 && u.deferredFree != nil {
			unused = append(unused, u)
		}
	}

	return unused
}

// freeAllUnused requires that the caller does not hold mu.
func (uc *UseCounts) freeAllUnused(unused []*UseCount) {
	for _, u := range unused {
		uc.freeUnused(u)
	}
}

// freeUnused runs the deferred free of an object, and then those of the objects that the object
// depended on and that have become unused.
func (uc *UseCounts) freeUnused(u *UseCount) {
	for u != nil {
		free := uc.takeDeferredFree(u)
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

// takeDeferredFree returns the deferred free of u and clears it, so that only one goroutine calls
// it. It returns nil if u has users or no deferred free.
func (uc *UseCounts) takeDeferredFree(u *UseCount) (free func() error) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.userCount > 0 {
		return nil
	}

	free = u.deferredFree
	u.deferredFree = nil
	return free
}

// AddPlainCalls adds a plain call as a user for each entry, even if entries repeat.
func (uc *UseCounts) AddPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	for _, u := range useCounts {
		u.userCount++
		u.plainCallCount++
		u.mayBeMapped = true
	}
}

// EndPlainCalls undoes AddPlainCalls after the graph has been destroyed, and frees objects that are
// then unused. It may wait for other ranks.
func (uc *UseCounts) EndPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	unused := uc.removePlainCalls(useCounts)
	uc.mu.Unlock()
	uc.freeAllUnused(unused)
}

// removePlainCalls is removeUsers for users that are plain calls. The caller must hold mu.
func (uc *UseCounts) removePlainCalls(useCounts []*UseCount) (unused []*UseCount) {
	for _, u := range useCounts {
		u.plainCallCount--
	}

	return removeUsers(useCounts)
}

func (uc *UseCounts) hasPlainCalls(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.plainCallCount > 0
}

// releaseOnPeers makes NCCL remove mappings of the object that destroyed graphs may have left on
// other ranks. It does nothing while the object has plain calls. isUnmapping is set if the caller
// unmaps the object even after an error.
func (m *Memory) releaseOnPeers(u *UseCount, isUnmapping bool) error {
	if !m.NCCLMapsCaptured {
		return nil
	}

	mayBeMapped := m.UseCounts.clearMayBeMapped(u)
	if !mayBeMapped {
		return nil
	}

	err := m.ReleaseCaptured(isUnmapping)
	if err != nil {
		m.UseCounts.mu.Lock()
		defer m.UseCounts.mu.Unlock()
		u.mayBeMapped = true
	}

	return err
}

// clearMayBeMapped clears u.mayBeMapped and returns its old value. While plain calls are left, it
// returns false and does nothing.
func (uc *UseCounts) clearMayBeMapped(u *UseCount) (wasSet bool) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.plainCallCount > 0 {
		return false
	}

	wasSet = u.mayBeMapped
	u.mayBeMapped = false
	return wasSet
}

// EndRemainingHolds ends the Holds whose graphs cannot report their destruction. Call it when the
// device is closed.
func (uc *UseCounts) EndRemainingHolds() {
	uc.mu.Lock()
	holds := uc.holdsUntilClose
	uc.holdsUntilClose = nil
	uc.mu.Unlock()
	for _, h := range holds {
		h.end()
	}
}
