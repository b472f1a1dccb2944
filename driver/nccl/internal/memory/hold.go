package memory

import (
	"errors"
	"slices"
	"sync"

	"symmem/internal/cuda"
)

// Hold keeps the objects that a CUDA graph of another library, such as PyTorch, uses: segments, and
// windows (memory registered with NCCL). It ends when the graph is destroyed or, if the CUDA driver
// cannot report this, when the device is closed.
type Hold struct {
	holds     *Holds      // of the group whose calls the graph contains
	captureID uint64      // assigned by CUDA
	useCounts []*UseCount // one for each object; guarded by UseCounts.mu
	// plainUses lists the objects of plain calls, which use memory outside windows. Each call counts
	// as a user, in addition to the Hold. Only the capturing goroutine changes plainUses.
	plainUses []*UseCount
}

// Holds contains the Holds of a group.
type Holds struct {
	UseCounts *UseCounts

	holdsByCapture  map[uint64]*Hold // by captureID, until the Hold ends; guarded by UseCounts.mu
	unfinishedHolds sync.WaitGroup   // Holds whose objects may not have been freed yet
}

// GetOrBegin returns the Hold of the stream's current capture, and begins it if necessary. Without
// a capture, it returns nil. It must not be called concurrently. The CUDA context must be current.
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

// begin makes CUDA call h.end when the graph is destroyed. If it fails, it ends h.
func (h *Hold) begin(graph cuda.Graph) error {
	h.add()
	uc := h.holds.UseCounts
	err := uc.gpu.CUDA.CallAfterGraph(graph, h.end)
	var missing *cuda.MissingError // the driver has no such function
	if errors.As(err, &missing) {
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

// AddUses makes the Hold a user of the objects of a call. The Hold counts only once for each
// object.
func (h *Hold) AddUses(useCounts []*UseCount) {
	h.holds.UseCounts.mu.Lock()
	defer h.holds.UseCounts.mu.Unlock()
	for _, u := range useCounts {
		if !slices.Contains(h.useCounts, u) {
			u.userCount++
			h.useCounts = append(h.useCounts, u)
		}
	}
}

// AddPlainUses makes a plain call a user of its objects, once for each entry. Entries may repeat.
func (h *Hold) AddPlainUses(useCounts []*UseCount) {
	h.plainUses = append(h.plainUses, useCounts...)
	h.holds.UseCounts.AddPlainCalls(useCounts)
}

// end frees the objects that have no other users. It frees them on a new goroutine, because CUDA
// calls end on a thread that must not call CUDA.
func (h *Hold) end() {
	hs := h.holds
	unused := h.removeUses()
	if len(unused) == 0 {
		hs.unfinishedHolds.Done()
		return
	}

	go func() {
		defer hs.unfinishedHolds.Done()
		hs.UseCounts.runAllDeferred(unused)
	}()
}

// removeUses removes the Hold and its plain calls from the users of all objects, and returns the
// objects to free.
func (h *Hold) removeUses() (unused []*UseCount) {
	hs := h.holds
	uc := hs.UseCounts
	uc.mu.Lock()
	defer uc.mu.Unlock()
	delete(hs.holdsByCapture, h.captureID)
	unused = decrementAll(h.useCounts)
	unusedPlain := uc.removePlainCalls(h.plainUses)
	return append(unused, unusedPlain...)
}

// HasCapture reports whether the capture has a Hold that has not ended.
func (hs *Holds) HasCapture(captureID uint64) bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return hs.holdsByCapture[captureID] != nil
}

// IsActive reports whether any Hold has not ended.
func (hs *Holds) IsActive() bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return len(hs.holdsByCapture) > 0
}

// Wait waits until all Holds have ended and freed their unused objects.
func (hs *Holds) Wait() { hs.unfinishedHolds.Wait() }
