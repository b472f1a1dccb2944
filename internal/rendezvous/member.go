package rendezvous

import (
	"context"
	"errors"
	"strconv"
	"sync"
)

// Member represents this rank in the world that one call of Connect has joined. It is safe for
// concurrent use.
type Member struct {
	// These fields do not change after the member has joined.
	world     World
	client    *Client     // of the store
	service   *service    // nil unless this process serves the store
	keyPrefix string      // of this world's keys in the store
	store     *Client     // client that adds keyPrefix to each key
	watcher   *endWatcher // nil if the server does not record which ranks have ended

	leaveOnce  sync.Once
	leaveError error // result of Leave
}

// readyKey is set by rank 0 when all ranks have joined, or when it gives up waiting for them.
const readyKey = "ready"

// Each rank sets joinedKey when it joins the world, and leftKey when it leaves.
func joinedKey(rank int) string { return "joined/" + strconv.Itoa(rank) }

func leftKey(rank int) string { return "left/" + strconv.Itoa(rank) }

// Close leaves the job without a reason. On the rank that serves the store, it waits up to
// closeTimeout for the other ranks to leave.
func (m *Member) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return m.Leave(ctx, "")
}

// MaxReasonBytes is the maximum length of the reason that Leave sends to the other ranks.
const MaxReasonBytes = 64 << 10

// Leave leaves the job. In the process that serves the store, the last Member to leave waits until
// the other ranks have left or ctx is done, and then closes the store. Only the first call has an
// effect.
//
// The other ranks receive the reason unless it has more than MaxReasonBytes.
func (m *Member) Leave(ctx context.Context, reason string) error {
	if len(reason) > MaxReasonBytes {
		reason = ""
	}
	m.leaveOnce.Do(func() { m.leaveError = m.leaveWorld(ctx, reason) })
	return m.leaveError
}

// leaveWorld announces that this rank leaves, and closes its connections or the store.
func (m *Member) leaveWorld(ctx context.Context, reason string) error {
	if m.store != nil && m.world.Size > 1 {
		publishCtx, cancel := context.WithTimeout(context.Background(), lateRequestTimeout)
		defer cancel()
		m.publishLeft(publishCtx, []byte(reason))
	}
	err := m.watcher.close()
	if m.service != nil {
		return errors.Join(err, m.serveUntilLeft(ctx))
	}
	return errors.Join(err, m.client.Close())
}

// publishLeft stores the reason under leftKey. It prefers the watcher's connection, because rank 0
// may no longer accept new connections.
func (m *Member) publishLeft(ctx context.Context, reason []byte) {
	if m.watcher != nil && m.watcher.announceLeave(ctx, reason) == nil {
		return
	}
	_ = m.store.Set(ctx, leftKey(m.world.Rank), reason) // fails if the store is gone
}

// serveUntilLeft closes this member's client. If this is the last member of the process, it also
// closes the server when all other ranks have left or disconnected, or when ctx is done.
func (m *Member) serveUntilLeft(ctx context.Context) error {
	isLast, leaveKeys := m.service.removeMember()
	if !isLast {
		return m.client.Close()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer reportLateRanks(ctx, m.world.ReportConnected, func(context.Context) []int {
		return m.service.server.connectedRanks(m.keyPrefix)
	})()
	var waiter sync.WaitGroup
	waiter.Go(func() {
		if m.awaitLeft(ctx, leaveKeys) {
			cancel()
		}
	})
	_ = m.service.server.Drain(ctx) // The server is closed even if ranks are still connected.
	cancel()
	waiter.Wait()
	m.service.server.announceClosing()
	return errors.Join(m.client.Close(), m.service.server.Close())
}

// awaitLeft waits until the ranks of all worlds have set their leaveKeys, and reports whether they
// did. Without keys, it returns false: ranks do not announce that they leave a world that some
// rank did not join.
func (m *Member) awaitLeft(ctx context.Context, leaveKeys [][]string) bool {
	for _, keys := range leaveKeys {
		if m.client.Wait(ctx, keys...) != nil {
			return false
		}
	}
	return len(leaveKeys) > 0
}
