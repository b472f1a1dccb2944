package memory

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// An object is an arena (reserved addresses), a segment (memory that is mapped at addresses of an
// arena) or a window (a segment that is registered with NCCL). An object with users is not freed.
// For example, PyTorch has captured a CUDA graph that uses a segment:
//
//  1. The graph becomes a user of the segment, because it can be launched at any time.
//  2. The program unmaps the segment. This is deferred, because the segment has a user. From now
//     on, the segment is a user of its arena.
//  3. The program closes the arena. This is deferred, too.
//  4. PyTorch destroys the graph. Now the segment has no users and is unmapped. Then the arena has
//     no users, and its addresses are freed.
//
// A plain call is a call in a graph that uses memory outside windows. It is also a user. NCCL may
// map this memory on other ranks. Before the memory is freed or suspended, NCCL must unmap it
// there.

// UseCount counts the users of an object. UseCounts.mu guards the fields.
type UseCount struct {
	userCount int
	// deferredFree frees the object once userCount is 0. It is nil if free has not been deferred, and
	// again once it is being called.
	deferredFree func() error
	// dependsOn is an object that must be freed after this one, or nil. This object is a user of it
	// until deferredFree has returned.
	dependsOn *UseCount
	// plainCallCount is the number of plain calls among the users.
	plainCallCount int
	// mayBeMapped is set if NCCL may have mapped the object on other ranks for a plain call.
	mayBeMapped bool
}

// UseCounts guards all use counts of a device.
type UseCounts struct {
	gpu *gpu.GPU

	mu ranked.Mutex[useCountsMu] // guards the fields of all UseCount, and fields of other types
	// A Hold is a user for a graph of another library. holdsUntilClose contains the Holds of graphs
	// whose destruction CUDA does not report. mu guards it.
	holdsUntilClose []*Hold
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

func (uc *UseCounts) hasUsers(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.userCount > 0
}

// decrementAll removes one user from each object. It returns the objects that must be freed now:
// those without users whose free was deferred. The result overwrites the argument. The caller must
// hold UseCounts.mu.
func decrementAll(useCounts []*UseCount) (unused []*UseCount) {
	removeUser := func(u *UseCount) (mustStay bool) {
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

// takeDeferred returns the deferred free of an object without users, or nil. It forgets the
// function, so that no other goroutine calls it, too.
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

// AddPlainCalls adds plain calls of a graph: each entry of useCounts is an object that a call uses.
// An object can have several entries.
func (uc *UseCounts) AddPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	for _, u := range useCounts {
		u.userCount++
		u.plainCallCount++
		u.mayBeMapped = true
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

// removePlainCalls removes plain calls from the users of objects. Like decrementAll, it returns the
// objects that must be freed now, and overwrites the argument. The caller must hold mu.
func (uc *UseCounts) removePlainCalls(useCounts []*UseCount) (unused []*UseCount) {
	for _, u := range useCounts {
		u.plainCallCount--
	}

	return decrementAll(useCounts)
}

// hasPlainCalls reports whether a graph that is not destroyed uses the object in a plain call.
func (uc *UseCounts) hasPlainCalls(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.plainCallCount > 0
}

// releaseCaptured makes NCCL unmap the object on other ranks if it may be mapped there, and if all
// graphs that used it in plain calls have been destroyed. isUnmapping is set if the object's memory
// will be unmapped even after an error.
func (m *Memory) releaseCaptured(u *UseCount, isUnmapping bool) error {
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

// clearMayBeMapped clears mayBeMapped if no graph uses the object in a plain call any more. It
// returns true if it has cleared the flag.
func (uc *UseCounts) clearMayBeMapped(u *UseCount) (isCleared bool) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if !u.mayBeMapped || u.plainCallCount > 0 {
		return false
	}

	u.mayBeMapped = false
	return true
}

// EndRemainingHolds ends the Holds of graphs whose destruction CUDA does not report. Call it when
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
