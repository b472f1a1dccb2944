package memory

import (
	"errors"
	"slices"
	"sync"

	"symmem/internal/cuda"
)

// Hold keeps objects from being freed while a CUDA graph of another library, such as PyTorch, uses
// them. A Hold is active until its graph is destroyed, or until the device is closed if the CUDA
// driver is too old to report the destruction.
type Hold struct {
	holds     *Holds
	captureID uint64      // assigned by CUDA
	useCounts []*UseCount // without duplicates; guarded by UseCounts.mu
	plainUses []*UseCount // an entry for each use by a plain call; unchanged after the capture
}

// Holds contains the Holds of a communicator.
type Holds struct {
	UseCounts *UseCounts

	active     map[uint64]*Hold // by captureID; guarded by UseCounts.mu
	unfinished sync.WaitGroup   // Holds that are active or still freeing objects
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
	h := hs.active[capture.ID]
	uc.mu.Unlock()
	if h != nil {
		return h, nil
	}

	h = &Hold{holds: hs, captureID: capture.ID}
	if err := h.begin(capture.Graph); err != nil {
		return nil, err
	}

	return h, nil
}

// begin makes CUDA call h.end when the graph is destroyed. After an error, begin ends h.
func (h *Hold) begin(graph cuda.Graph) error {
	h.activate()
	uc := h.holds.UseCounts
	err := uc.gpu.CUDA.CallAfterGraph(graph, h.end)
	if err == nil {
		return nil
	}

	isDriverTooOld := errors.As(err, new(*cuda.MissingError))
	if isDriverTooOld {
		uc.mu.Lock()
		uc.holdsUntilClose = append(uc.holdsUntilClose, h)
		uc.mu.Unlock()
		return nil
	}

	h.end()
	return err
}

func (h *Hold) activate() {
	hs := h.holds
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	if hs.active == nil {
		hs.active = map[uint64]*Hold{}
	}

	hs.active[h.captureID] = h
	hs.unfinished.Add(1)
}

// AddUses makes the Hold a user of each object in useCounts, at most once.
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

// AddPlainUses adds a plain call for each entry of useCounts.
func (h *Hold) AddPlainUses(useCounts []*UseCount) {
	h.plainUses = append(h.plainUses, useCounts...)
	h.holds.UseCounts.AddPlainCalls(useCounts)
}

// end frees the objects that have no other users. It starts a goroutine for this, because CUDA may
// run end on a thread that must not call CUDA.
func (h *Hold) end() {
	hs := h.holds
	unused := h.deactivate()
	if len(unused) == 0 {
		hs.unfinished.Done()
		return
	}

	go func() {
		defer hs.unfinished.Done()
		hs.UseCounts.freeAllUnused(unused)
	}()
}

// deactivate undoes AddUses and AddPlainUses, and returns the objects to free.
func (h *Hold) deactivate() (unused []*UseCount) {
	hs := h.holds
	uc := hs.UseCounts
	uc.mu.Lock()
	defer uc.mu.Unlock()
	delete(hs.active, h.captureID)
	unused = removeUsers(h.useCounts)
	unusedPlain := removePlainCalls(h.plainUses)
	return append(unused, unusedPlain...)
}

// HasCapture reports whether a capture has an active Hold.
func (hs *Holds) HasCapture(captureID uint64) bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return hs.active[captureID] != nil
}

// HasActive reports whether any Hold is active.
func (hs *Holds) HasActive() bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return len(hs.active) > 0
}

// Wait waits until no Hold is active and all unused objects have been freed.
func (hs *Holds) Wait() { hs.unfinished.Wait() }

// EndRemainingHolds ends the Holds that last until the device is closed.
func (uc *UseCounts) EndRemainingHolds() {
	uc.mu.Lock()
	holds := uc.holdsUntilClose
	uc.holdsUntilClose = nil
	uc.mu.Unlock()
	for _, h := range holds {
		h.end()
	}
}
