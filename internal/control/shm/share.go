package shm

import (
	"context"
	"os"

	"symmem/internal/handoff"
)

// Export offers a descriptor to the other ranks under a key until Withdraw: memory of a device that
// peers are to map, say. The file stays the caller's, who keeps it open for as long.
func (m *Machine) Export(key handoff.Key, f *os.File) { m.server.Export(key, f) }

// Withdraw ends an export. Ranks that have the descriptor keep it.
func (m *Machine) Withdraw(key handoff.Key) { m.server.Withdraw(key) }

// Fetch asks a rank of this machine for what it has exported. The file is the caller's. The rank
// need not be in any call: its Machine answers.
func (m *Machine) Fetch(ctx context.Context, rank int, key handoff.Key) (*os.File, error) {
	p, err := m.peerOf(ctx, rank)
	if err != nil {
		return nil, err
	}
	return p.fetch(ctx, key)
}
