package memory

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// UseCount counts the users of an object: an arena, a segment or a window. The object is not freed
// while it has users. Users are graphs of other libraries, calls in graphs, and objects that depend
// on this one. UseCounts.mu guards the fields.
type UseCount struct {
	userCount int
	// deferredFree frees the object once userCount is 0. DeferUntilUnused sets it. It is nil before
	// that, and again once runDeferred has begun to free the object.
	deferredFree func() error
	// dependsOn is an object that must be freed after this one, or nil. Until deferredFree has
	// returned, this object is a user of dependsOn.
	dependsOn *UseCount
	// plainCallCount is the number of plain calls among the users. A plain call is a call in a graph
	// that uses the object outside windows (memory registered with NCCL).
	plainCallCount int
	// wasCaptured is set if NCCL may have mapped the object on other ranks for a plain call.
	wasCaptured bool
}

// UseCounts guards all use counts of a device, and all Holds. A Hold is a user for a graph of
// another library.
type UseCounts struct {
	gpu *gpu.GPU

	mu              ranked.Mutex[useCountsMu] // guards the fields of all UseCount and holdsUntilClose
	holdsUntilClose []*Hold                   // of graphs whose destruction the driver does not report
}

// DeferUntilUnused defers a call of free until u has no users. If u has none now, it returns false,
// and the caller must call free. If free has already been deferred for u, it only returns true.
//
// dependsOn can be nil. Otherwise, u becomes a user of it until free has returned. The next
// GPU.Reclaim returns the error of free.
func (uc *UseCounts) DeferUntilUnused(u, dependsOn *UseCount, free func() error) bool {
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

// AddPlainCalls records plain calls of a graph: each entry of useCounts is an object that a call
// uses outside windows. An object can have several entries.
func (uc *UseCounts) AddPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	for _, u := range useCounts {
		u.userCount++
		u.plainCallCount++
		u.wasCaptured = true
	}
}

// EndPlainCalls undoes AddPlainCalls after the graph has been destroyed, and frees objects that
// have no users left. It may wait for other ranks. It overwrites the slice.
func (uc *UseCounts) EndPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	unused := uc.removePlainCalls(useCounts)
	uc.mu.Unlock()
	uc.runAllDeferred(unused)
}

// removePlainCalls is decrementAll for plain calls, which it does not count any more. The caller
// must hold mu.
func (uc *UseCounts) removePlainCalls(useCounts []*UseCount) (unused []*UseCount) {
	for _, u := range useCounts {
		u.plainCallCount--
	}

	return decrementAll(useCounts)
}

// releaseCaptured makes NCCL unmap the object on other ranks, if only destroyed graphs have used
// the object in plain calls. See Memory.ReleaseCaptured for isUnmapping.
func (m *Memory) releaseCaptured(u *UseCount, isUnmapping bool) error {
	if !m.NCCLMapsCaptured || !m.UseCounts.clearCaptured(u) {
		return nil
	}

	err := m.ReleaseCaptured(isUnmapping)
	if err != nil { // NCCL may still have mapped the object, so set the flag again
		m.UseCounts.mu.Lock()
		defer m.UseCounts.mu.Unlock()
		u.wasCaptured = true
	}

	return err
}

// clearCaptured clears wasCaptured if no open graph uses the object in a plain call. It returns
// true if the flag was set and has been cleared.
func (uc *UseCounts) clearCaptured(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if !u.wasCaptured || u.plainCallCount > 0 {
		return false
	}

	u.wasCaptured = false
	return true
}

// hasPlainCalls reports whether a graph that is not destroyed uses the object in a plain call.
func (uc *UseCounts) hasPlainCalls(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.plainCallCount > 0
}

func (uc *UseCounts) hasUsers(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.userCount > 0
}

// decrementAll removes one user from each object. It returns the objects that have no users left
// and whose free was deferred. The result overwrites the argument. The caller must hold
// UseCounts.mu.
func decrementAll(useCounts []*UseCount) (unused []*UseCount) {
	removeUser := func(u *UseCount) (isStillNeeded bool) {
		u.userCount--
		return u.userCount > 0 || u.deferredFree == nil
	}
	return slices.DeleteFunc(useCounts, removeUser) // calls removeUser once for each entry
}

// runAllDeferred frees objects. The caller must not hold mu.
func (uc *UseCounts) runAllDeferred(unused []*UseCount) {
	for _, u := range unused {
		uc.runDeferred(u)
	}
}

// runDeferred frees an object, then the object on which it depends, and so on. It stops at an
// object that has users, or whose free is not deferred.
func (uc *UseCounts) runDeferred(u *UseCount) {
	for u != nil {
		uc.mu.Lock()
		free := u.deferredFree
		if u.userCount > 0 || free == nil {
			uc.mu.Unlock()
			return
		}

		u.deferredFree = nil // so that no other goroutine calls free, too
		uc.mu.Unlock()
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

// EndRemainingHolds ends the holds for graphs whose destruction cannot be observed. Call it when
// the device is closed.
func (uc *UseCounts) EndRemainingHolds() {
	uc.mu.Lock()
	holds := uc.holdsUntilClose
	uc.holdsUntilClose = nil
	uc.mu.Unlock()
	for _, h := range holds {
		h.end()
	}
}
