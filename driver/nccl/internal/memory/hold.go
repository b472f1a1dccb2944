package memory

import (
	"errors"
	"slices"
	"sync"

	"symmem/internal/cuda"
)

// Hold keeps what a graph of another library uses of a group, from the first call in its capture
// until the graph is gone: the group's exchange memory, report, kernels and communicator, and the
// windows and segments of its calls. If the driver does not report the end of a graph, the hold
// ends with the device.
type Hold struct {
	of      *Holds
	capture uint64      // CUDA's ID of the capture
	used    []*UseCount // without duplicates; guarded by UseCounts.mu
}

// Holds tracks the holds of a group.
type Holds struct {
	UseCounts *UseCounts

	captures map[uint64]*Hold // by capture ID; guarded by UseCounts.mu
	held     sync.WaitGroup   // counts the holds
}

// For returns the hold of a stream's active capture, creating it at the first call, or nil without
// an active capture. Calls must not be concurrent, and must be made on a thread of the context.
func (hs *Holds) For(stream cuda.Stream) (*Hold, error) {
	uc := hs.UseCounts
	capture, err := uc.gpu.CUDA.CaptureInfo(stream)
	if err != nil || capture.Graph == 0 {
		return nil, err
	}
	uc.mu.Lock()
	h := hs.captures[capture.ID]
	uc.mu.Unlock()
	if h == nil {
		h = &Hold{of: hs, capture: capture.ID}
		err = h.begin(capture.Graph)
	}
	return h, err
}

// begin registers the hold and makes it end with the graph.
func (h *Hold) begin(graph cuda.Graph) error {
	hs, uc := h.of, h.of.UseCounts
	uc.mu.Lock()
	if hs.captures == nil {
		hs.captures = map[uint64]*Hold{}
	}
	hs.captures[h.capture] = h
	hs.held.Add(1)
	uc.mu.Unlock()
	err := uc.gpu.CUDA.AtGraphEnd(graph, h.end)
	if missing := (*cuda.MissingError)(nil); errors.As(err, &missing) {
		uc.mu.Lock()
		uc.withoutEnd = append(uc.withoutEnd, h)
		uc.mu.Unlock()
		return nil
	}
	if err != nil {
		h.end()
	}
	return err
}

// end releases what the hold uses. CUDA calls it on a thread that must not call CUDA, so a
// goroutine runs the deferred functions.
func (h *Hold) end() {
	hs, uc := h.of, h.of.UseCounts
	uc.mu.Lock()
	delete(hs.captures, h.capture)
	idle := release(h.used)
	uc.mu.Unlock()
	if len(idle) == 0 {
		hs.held.Done()
		return
	}
	go func() {
		defer hs.held.Done()
		for _, k := range idle {
			uc.runDeferred(k)
		}
	}()
}

// Use adds the objects that a call uses.
func (h *Hold) Use(used []*UseCount) {
	h.of.UseCounts.mu.Lock()
	defer h.of.UseCounts.mu.Unlock()
	for _, k := range used {
		if !slices.Contains(h.used, k) {
			k.users++
			h.used = append(h.used, k)
		}
	}
}

// Has reports whether a capture, identified by CUDA's ID, or its graph contains calls of the group.
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

// Wait waits until all holds have ended and the functions they deferred have returned.
func (hs *Holds) Wait() { hs.held.Wait() }
