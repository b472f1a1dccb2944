package memory

import (
	"errors"
	"slices"
	"sync"

	"symmem/internal/cuda"
)

// Hold keeps segments and windows (memory registered with NCCL) from being freed while a CUDA graph
// of another library, such as PyTorch, uses them. A Hold ends when its graph is destroyed. Old CUDA
// drivers cannot report this, and the Hold then lasts until the device is closed.
type Hold struct {
	holds     *Holds      // of the group that the graph's calls belong to
	captureID uint64      // assigned by CUDA
	useCounts []*UseCount // without duplicates; guarded by UseCounts.mu
	// plainUses has an entry for each use by a plain call (see UseCount). Only the goroutine that
	// captures the graph changes plainUses.
	plainUses []*UseCount
}

// Holds contains the Holds of a group.
type Holds struct {
	UseCounts *UseCounts

	holdsByCapture  map[uint64]*Hold // by captureID, until the Hold ends; guarded by UseCounts.mu
	unfinishedHolds sync.WaitGroup   // Holds that still have to free unused memory
}

// GetOrBegin returns the Hold of the stream's capture, and begins a Hold for a new capture. It
// returns nil if the stream is not capturing. Calls must not be concurrent, and the CUDA context
// must be current.
func (hs *Holds) GetOrBegin(stream cuda.Stream) (*Hold, error) {
	uc := hs.UseCounts
	capture, err := uc.gpu.CUDA.CaptureInfo(stream)
	if err != nil || capture.Graph == 0 {
		return nil, err
	}

	uc.mu.Lock()
	h := hs.holdsByCapture[capture.ID]
	uc.mu.Unlock()
	if h != nil {
		return h, nil
	}

	h = &Hold{holds: hs, captureID: capture.ID}
	err = h.begin(capture.Graph)
	return h, err
}

// begin makes CUDA call h.end when the graph is destroyed. After an error, h has ended.
func (h *Hold) begin(graph cuda.Graph) error {
	h.add()
	uc := h.holds.UseCounts
	err := uc.gpu.CUDA.CallAfterGraph(graph, h.end)
	driverIsOld := errors.As(err, new(*cuda.MissingError))
	if driverIsOld {
		uc.mu.Lock()
		uc.holdsUntilClose = append(uc.holdsUntilClose, h)
		uc.mu.Unlock()
		return nil
	}

	if err != nil {
		h.end()
	}

	return err
}

func (h *Hold) add() {
	hs := h.holds
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	if hs.holdsByCapture == nil {
		hs.holdsByCapture = map[uint64]*Hold{}
	}

	hs.holdsByCapture[h.captureID] = h
	hs.unfinishedHolds.Add(1)
}

// AddUses makes the Hold a user of each object. A Hold counts as one user even if several calls in
// the graph use the object.
func (h *Hold) AddUses(useCounts []*UseCount) {
	h.holds.UseCounts.mu.Lock()
	defer h.holds.UseCounts.mu.Unlock()
	for _, u := range useCounts {
		isUser := slices.Contains(h.useCounts, u)
		if !isUser {
			u.userCount++
			h.useCounts = append(h.useCounts, u)
		}
	}
}

// AddPlainUses adds a plain call as a user for each entry, even if entries repeat.
func (h *Hold) AddPlainUses(useCounts []*UseCount) {
	h.plainUses = append(h.plainUses, useCounts...)
	h.holds.UseCounts.AddPlainCalls(useCounts)
}

// end frees the objects without other users, on a new goroutine. CUDA may invoke end on a thread
// that must not call back into CUDA.
func (h *Hold) end() {
	hs := h.holds
	unused := h.removeUses()
	if len(unused) == 0 {
		hs.unfinishedHolds.Done()
		return
	}

	go func() {
		defer hs.unfinishedHolds.Done()
		hs.UseCounts.freeAllUnused(unused)
	}()
}

// removeUses undoes AddUses and AddPlainUses, and returns the objects to free.
func (h *Hold) removeUses() (unused []*UseCount) {
	hs := h.holds
	uc := hs.UseCounts
	uc.mu.Lock()
	defer uc.mu.Unlock()
	delete(hs.holdsByCapture, h.captureID)
	unused = removeUsers(h.useCounts)
	unusedPlain := uc.removePlainCalls(h.plainUses)
	return append(unused, unusedPlain...)
}

// HasCapture reports whether a capture has an active Hold.
func (hs *Holds) HasCapture(captureID uint64) bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return hs.holdsByCapture[captureID] != nil
}

// IsActive reports whether any Hold is active.
func (hs *Holds) IsActive() bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return len(hs.holdsByCapture) > 0
}

// Wait waits until all Holds have ended and freed unused memory.
func (hs *Holds) Wait() { hs.unfinishedHolds.Wait() }
