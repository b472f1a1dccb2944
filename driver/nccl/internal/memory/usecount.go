package memory

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// UseCount counts the users of an object, which keep it from being freed. Users are graphs of
// other libraries, calls in graphs, and objects that depend on it. UseCounts.mu guards the fields.
type UseCount struct {
	userCount int
	// deferredFree, if not nil, must be called once userCount is 0, to free the object.
	deferredFree func() error
	// dependsOn is the object of which this one is a user until deferredFree has returned, or nil.
	dependsOn *UseCount
	// plainCallCount is the number of users that are calls in graphs and use the object outside
	// windows (memory registered with NCCL).
	plainCallCount int
	// wasCaptured is set if NCCL may have mapped the object on other ranks for one of these calls.
	wasCaptured bool
}

// UseCounts guards a device's use counts and holds.
type UseCounts struct {
	gpu *gpu.GPU

	mu              ranked.Mutex[useCountsMu]
	holdsUntilClose []*Hold // for graphs whose destruction the driver does not report
}

// DeferUntilUnused defers a call of free until u has no users. If u has none now, it returns
// false, and the caller must call free. After the first deferral, it ignores the arguments. Until
// free has returned, u is a user of dependsOn, which can be nil. The next GPU.Reclaim returns the
// error of free.
func (uc *UseCounts) DeferUntilUnused(u, dependsOn *UseCount, free func() error) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.userCount == 0 {
		return false
	}
	if u.deferredFree == nil {
		u.deferredFree, u.dependsOn = free, dependsOn
		if dependsOn != nil {
			dependsOn.userCount++
		}
	}
	return true
}

// AddPlainCalls records that a graph uses objects outside windows.
func (uc *UseCounts) AddPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	for _, u := range useCounts {
		u.userCount++
		u.plainCallCount++
		u.wasCaptured = true
	}
}

// EndPlainCalls undoes AddPlainCalls after the graph has been destroyed, and frees unused objects.
// It may wait for other ranks. It overwrites the slice.
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

// releaseCaptured makes NCCL unmap the object on other ranks if destroyed graphs have used it.
// See ReleaseCaptured for isUnmapping.
func (m *Memory) releaseCaptured(u *UseCount, isUnmapping bool) error {
	if !m.NCCLMapsCaptured || !m.UseCounts.clearCaptured(u) {
		return nil
	}
	err := m.ReleaseCaptured(isUnmapping)
	if err != nil {
		m.UseCounts.mu.Lock()
		defer m.UseCounts.mu.Unlock()
		u.wasCaptured = true
	}
	return err
}

// clearCaptured clears wasCaptured if no open graph uses the object in a plain call. It reports
// whether it has cleared the flag.
func (uc *UseCounts) clearCaptured(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if !u.wasCaptured || u.plainCallCount > 0 {
		return false
	}
	u.wasCaptured = false
	return true
}

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

// decrementAll removes a user from each object. It returns the objects that have no users left and
// must be freed, in the memory of the argument. The caller must hold UseCounts.mu.
func decrementAll(useCounts []*UseCount) (unused []*UseCount) {
	return slices.DeleteFunc(useCounts, func(u *UseCount) bool {
		u.userCount--
		return u.userCount > 0 || u.deferredFree == nil
	})
}

func (uc *UseCounts) runAllDeferred(unused []*UseCount) {
	for _, u := range unused {
		uc.runDeferred(u)
	}
}

// runDeferred frees an object and then the objects on which it depends, unless they have users.
func (uc *UseCounts) runDeferred(u *UseCount) {
	for u != nil {
		uc.mu.Lock()
		free := u.deferredFree
		if u.userCount > 0 || free == nil {
			uc.mu.Unlock()
			return
		}
		u.deferredFree = nil
		uc.mu.Unlock()
		if err := free(); err != nil {
			uc.gpu.ReportInReclaim(err)
		}
		if u = u.dependsOn; u != nil {
			uc.mu.Lock()
			u.userCount--
			uc.mu.Unlock()
		}
	}
}

// EndRemainingHolds ends the holds for graphs whose destruction cannot be observed. It must be
// called when the device is closed.
func (uc *UseCounts) EndRemainingHolds() {
	uc.mu.Lock()
	holds := uc.holdsUntilClose
	uc.holdsUntilClose = nil
	uc.mu.Unlock()
	for _, h := range holds {
		h.end()
	}
}
