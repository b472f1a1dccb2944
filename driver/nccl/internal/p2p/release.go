package p2p

import (
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
)

// Release ends the waits of messages that will not come. It is called again and again,
// since a graph that is launched several times waits as often.
func (m *Messages) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.receives {
		e.refuse()
	}
	m.open = slices.DeleteFunc(m.open, func(e *End) bool { return e.handled })
	seen := map[*uint32]bool{} // of launches of one graph only one waits
	for _, e := range m.sends {
		if e.taken != nil && !seen[e.taken] && e.state.Value() == kernels.MessageWaits {
			e.release()
		}
		seen[e.taken] = true
	}
}

// ReleaseLate repeats Release until all streams have passed the messages of a group that has ended.
// The memory of these messages, and with it the device, stays until then.
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
