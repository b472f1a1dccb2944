package p2p

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
)

// Release unblocks streams that wait for messages which will never arrive, or for the peer to copy
// a graph's previous message. It must be called at least once per pending launch: each queued
// launch of a graph waits again.
func (m *Messages) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.receives {
		e.refuse()
	}
	m.open = slices.DeleteFunc(m.open, func(e *End) bool { return e.handled })
	seen := map[*uint32]bool{} // launches of one graph share a word; only one waits at a time
	for _, e := range m.sends {
		if e.takenWord != nil && !seen[e.takenWord] && e.state.Value() == kernels.MessageWaits {
			e.release()
		}
		seen[e.takenWord] = true
	}
}

// ReleaseLate repeats Release in the background until no stream has a message of the ended group in
// flight. The memory of these messages cannot be freed until then, so the device stays open.
func (m *Messages) ReleaseLate() {
	if m.counts == nil || m.late {
		return
	}
	m.late = true
	m.Device.Late.Add(1)
	go func() {
		defer m.Device.Late.Add(-1)
		gpu.PollSeldom(func() bool {
			if !m.InFlight() {
				return true
			}
			m.Release()
			return false
		})
	}()
}
