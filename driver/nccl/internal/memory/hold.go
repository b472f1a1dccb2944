package memory

import (
	"errors"
	"slices"
	"sync"

	"symmem/internal/cuda"
)

// Hold keeps the objects that a graph of another library uses until the graph is destroyed. If the
// CUDA driver cannot report the destruction, the Hold ends when the device is closed.
type Hold struct {
	holds     *Holds      // of the group whose calls the graph contains
	captureID uint64      // CUDA's ID of the capture
	useCounts []*UseCount // of all objects that the graph uses; guarded by UseCounts.mu
	// plainUses holds an entry for each use of an object outside windows (memory registered with
	// NCCL). Only the goroutine that captures the graph changes it.
	plainUses []*UseCount
}

// Holds contains the Holds of a group's calls in graphs of other libraries.
type Holds struct {
	UseCounts *UseCounts

	holdsByCapture map[uint64]*Hold // active holds by captureID; guarded by UseCounts.mu
	activeHolds    sync.WaitGroup   // counts holds until they have ended and objects have been freed
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
	hs := h.holds
	uc := hs.UseCounts
	uc.mu.Lock()
	if hs.holdsByCapture == nil {
		hs.holdsByCapture = map[uint64]*Hold{}
	}

	hs.holdsByCapture[h.captureID] = h
	hs.activeHolds.Add(1)
	uc.mu.Unlock()
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

// end ends the hold. CUDA calls it on a thread that must not call CUDA, so a new goroutine frees
// unused objects.
func (h *Hold) end() {
	hs := h.holds
	uc := hs.UseCounts
	uc.mu.Lock()
	delete(hs.holdsByCapture, h.captureID)
	unused := decrementAll(h.useCounts)
	unusedPlain := uc.removePlainCalls(h.plainUses)
	unused = append(unused, unusedPlain...)
	uc.mu.Unlock()
	if len(unused) == 0 {
		hs.activeHolds.Done()
		return
	}

	go func() {
		defer hs.activeHolds.Done()
		uc.runAllDeferred(unused)
	}()
}

// AddUses makes the graph a user of the objects that one of its calls uses. The graph counts only
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

// AddPlainUses records a call that uses objects outside windows. Each such use counts.
func (h *Hold) AddPlainUses(useCounts []*UseCount) {
	h.plainUses = append(h.plainUses, useCounts...)
	h.holds.UseCounts.AddPlainCalls(useCounts)
}

// HasCapture reports whether the graph of a capture contains calls of the group, and has not been
// destroyed.
func (hs *Holds) HasCapture(captureID uint64) bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return hs.holdsByCapture[captureID] != nil
}

// IsActive reports whether any graph of another library, which has not been destroyed, contains
// calls of the group.
func (hs *Holds) IsActive() bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return len(hs.holdsByCapture) > 0
}

// Wait waits until all holds have ended and unused objects have been freed.
func (hs *Holds) Wait() { hs.activeHolds.Wait() }
