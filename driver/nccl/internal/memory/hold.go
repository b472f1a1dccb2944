package memory

import (
	"errors"
	"slices"
	"sync"

	"symmem/internal/cuda"
)

// Hold keeps alive everything of a group that a graph of another library uses, until the graph is
// destroyed. If the driver does not report that, the hold ends when the device is closed.
type Hold struct {
	holds   *Holds
	capture uint64      // CUDA's ID
	used    []*UseCount // guarded by UseCounts.mu
}

// Holds tracks the holds of a group.
type Holds struct {
	UseCounts *UseCounts

	captures map[uint64]*Hold // by capture ID; guarded by UseCounts.mu
	active   sync.WaitGroup
}

// HoldFor returns the hold of the capture that is active on a stream. If no capture is active,
// HoldFor returns nil. HoldFor must not be called concurrently. The context must be current on the
// calling thread.
func (hs *Holds) HoldFor(stream cuda.Stream) (*Hold, error) {
	uc := hs.UseCounts
	capture, err := uc.gpu.CUDA.CaptureInfo(stream)
	if err != nil || capture.Graph == 0 {
		return nil, err
	}
	uc.mu.Lock()
	h := hs.captures[capture.ID]
	uc.mu.Unlock()
	if h == nil {
		h = &Hold{holds: hs, capture: capture.ID}
		err = h.begin(capture.Graph)
	}
	return h, err
}

func (h *Hold) begin(graph cuda.Graph) error {
	hs, uc := h.holds, h.holds.UseCounts
	uc.mu.Lock()
	if hs.captures == nil {
		hs.captures = map[uint64]*Hold{}
	}
	hs.captures[h.capture] = h
	hs.active.Add(1)
	uc.mu.Unlock()
	err := uc.gpu.CUDA.AtGraphEnd(graph, h.end)
	if missing := (*cuda.MissingError)(nil); errors.As(err, &missing) {
		uc.mu.Lock()
		uc.endWithDevice = append(uc.endWithDevice, h)
		uc.mu.Unlock()
		return nil
	}
	if err != nil {
		h.end()
	}
	return err
}

// end releases the objects that the hold keeps. CUDA calls end on a thread that must not call CUDA,
// so a new goroutine frees the objects that are now unused.
func (h *Hold) end() {
	hs, uc := h.holds, h.holds.UseCounts
	uc.mu.Lock()
	delete(hs.captures, h.capture)
	unused := release(h.used)
	uc.mu.Unlock()
	if len(unused) == 0 {
		hs.active.Done()
		return
	}
	go func() {
		defer hs.active.Done()
		for _, u := range unused {
			uc.runDeferred(u)
		}
	}()
}

// Use makes the hold keep the objects that a call uses.
func (h *Hold) Use(used []*UseCount) {
	h.holds.UseCounts.mu.Lock()
	defer h.holds.UseCounts.mu.Unlock()
	for _, u := range used {
		if !slices.Contains(h.used, u) {
			u.users++
			h.used = append(h.used, u)
		}
	}
}

// Has reports whether the capture with the given CUDA ID contains calls of the group.
func (hs *Holds) Has(id uint64) bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return hs.captures[id] != nil
}

// Any reports whether any graph of another library contains calls of the group.
func (hs *Holds) Any() bool {
	hs.UseCounts.mu.Lock()
	defer hs.UseCounts.mu.Unlock()
	return len(hs.captures) > 0
}

// Wait waits until all holds have ended and the objects that only they kept have been freed.
func (hs *Holds) Wait() { hs.active.Wait() }
