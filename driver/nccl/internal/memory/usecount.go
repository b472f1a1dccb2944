package memory

import (
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// UseCount counts the users of an object: a window (memory registered with NCCL), a segment, or an
// arena. The object is not freed while it has users. UseCounts.mu guards the fields.
//
// A plain call is a captured call whose memory is not in windows.
type UseCount struct {
	userCount      int          // graphs, plain calls, and contained objects with a deferredFree
	plainCallCount int          // users that are plain calls
	mayBeOnPeers   bool         // NCCL may have mapped the object on other ranks for a plain call
	deferredFree   func() error // called once userCount is 0; nil if no free is pending
	container      *UseCount    // a window's segment or a segment's arena; freed after this object
}

// UseCounts guards the use counts of a device.
type UseCounts struct {
	gpu *gpu.GPU

	mu              ranked.Mutex[useCountsMu]
	holdsUntilClose []*Hold // for graphs whose destruction CUDA does not report
}

// AddPlainCalls adds a plain call for each entry of useCounts.
func (uc *UseCounts) AddPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	for _, u := range useCounts {
		u.userCount++
		u.plainCallCount++
		u.mayBeOnPeers = true
	}
}

// EndPlainCalls removes the users that AddPlainCalls has added, and frees unused objects. It may
// wait for other ranks.
func (uc *UseCounts) EndPlainCalls(useCounts []*UseCount) {
	uc.mu.Lock()
	unused := removePlainCalls(useCounts)
	uc.mu.Unlock()
	uc.freeAllUnused(unused)
}

// DeferUntilUnused returns false if u has no users. The caller must then call free. Otherwise, free
// runs once u has no users, and GPU.Reclaim returns its error. Until then, u is a user of
// container, unless that is nil. Later calls for u are ignored.
func (uc *UseCounts) DeferUntilUnused(
	u, container *UseCount, free func() error,
) (isDeferred bool) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.userCount == 0 {
		return false
	}

	if u.deferredFree == nil {
		u.deferredFree = free
		u.container = container
		if container != nil {
			container.userCount++
		}
	}

	return true
}

func (uc *UseCounts) hasUsers(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.userCount > 0
}

// removePlainCalls is removeUsers for plain calls.
func removePlainCalls(useCounts []*UseCount) (unused []*UseCount) {
	for _, u := range useCounts {
		u.plainCallCount--
	}

	return removeUsers(useCounts)
}

// removeUsers removes a user for each entry. The caller must hold UseCounts.mu, and pass the unused
// objects to freeAllUnused after unlocking.
func removeUsers(useCounts []*UseCount) (unused []*UseCount) {
	for _, u := range useCounts {
		u.userCount--
		if u.userCount == 0 && u.deferredFree != nil {
			unused = append(unused, u)
		}
	}

	return unused
}

// freeAllUnused runs the deferred frees. The caller must not hold mu.
func (uc *UseCounts) freeAllUnused(unused []*UseCount) {
	for _, u := range unused {
		uc.freeUnused(u)
	}
}

// freeUnused runs the deferred free of an object, and then that of each enclosing container that
// has no other users.
func (uc *UseCounts) freeUnused(u *UseCount) {
	for u != nil {
		free := uc.takeDeferredFree(u)
		if free == nil {
			return
		}

		if err := free(); err != nil {
			uc.gpu.ReportInReclaim(err)
		}

		container := u.container
		if container != nil {
			uc.mu.Lock()
			container.userCount--
			uc.mu.Unlock()
		}

		u = container
	}
}

// takeDeferredFree returns and clears the deferred free of u, or returns nil if u has users.
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

func (uc *UseCounts) hasPlainCalls(u *UseCount) bool {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	return u.plainCallCount > 0
}

// beginRelease clears mayBeOnPeers and returns its old value. If u has plain calls, it only returns
// false.
func (uc *UseCounts) beginRelease(u *UseCount) (mustRelease bool) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	if u.plainCallCount > 0 {
		return false
	}

	mustRelease = u.mayBeOnPeers
	u.mayBeOnPeers = false
	return mustRelease
}
