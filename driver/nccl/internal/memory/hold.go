package memory

import (
	"errors"
	"slices"
	"sync"

	"symmem/internal/cuda"
)

// Other libraries, such as PyTorch, can capture calls of a group in a CUDA graph. They can launch
// the graph until they destroy it. Until then, the objects that its calls use must not be freed:
// segments, which are allocations of GPU memory, and windows, which are memory that is registered
// with NCCL. A Hold ensures this. For example, a graph contains two calls that use segment 1, and
// one that uses segment 2. Its Hold is a user of both segments. It ends when CUDA reports that the
// graph has been destroyed. An object that has no users left can then be freed.
//
// A plain call uses memory outside windows. In addition to the Hold, each plain call is a user.

// Hold keeps the objects that a graph of another library uses until the graph is destroyed. If the
// CUDA driver cannot report the destruction, the Hold ends when the device is closed.
type Hold struct {
	holds     *Holds      // of the group whose calls the graph contains
	captureID uint64      // CUDA's ID of the capture
	useCounts []*UseCount // of all objects that the graph uses; guarded by UseCounts.mu
	// plainUses holds an entry for each object of each plain call. Only the goroutine that captures
	// the graph changes it.
	plainUses []*UseCount
}

// Holds contains the Holds of a group.
type Holds struct {
	UseCounts *UseCounts

	// holdsByCapture contains the Holds that have not ended, by captureID. UseCounts.mu guards it.
	holdsByCapture map[uint64]*Hold
	// unfinishedHolds counts the Holds that have not ended, or whose objects are still being freed.
	unfinishedHolds sync.WaitGroup
}

// GetOrBegin returns the Hold of the graph that is being captured on the stream. If the graph has
// none, it begins one. Without a capture, it returns nil. It must not be called concurrently. The
// CUDA context must be current.
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

// begin makes CUDA call h.end after the graph has been destroyed. After an error, h has ended.
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

// add adds the Hold to those of its group.
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

// AddUses makes the Hold a user of the objects that one of the graph's calls uses. It counts only
// once for each object.
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

// AddPlainUses makes a plain call a user of the objects that it uses. An object can have several
// entries, and each counts.
func (h *Hold) AddPlainUses(useCounts []*UseCount) {
	h.plainUses = append(h.plainUses, useCounts...)
	h.holds.UseCounts.AddPlainCalls(useCounts)
}

// end ends the Hold. CUDA calls it on a thread that must not call CUDA, so a new goroutine frees
// unused objects.
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

// removeUses removes the Hold and the plain calls from the users of all objects. It returns the
// objects that must be freed now.
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

// HasCapture reports whether the graph of a capture contains calls of the group, and has not been
// destroyed.
func (hs *Holds) HasCapture(captureID uint64) bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return hs.holdsByCapture[captureID] != nil
}

// IsActive reports whether any Hold has not ended. This means that a graph of another library,
// which has not been destroyed, contains calls of the group.
func (hs *Holds) IsActive() bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return len(hs.holdsByCapture) > 0
}

// Wait waits until all Holds have ended and unused objects have been freed.
func (hs *Holds) Wait() { hs.unfinishedHolds.Wait() }
