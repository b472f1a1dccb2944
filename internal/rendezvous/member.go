package rendezvous

import (
	"context"
	"errors"
	"strconv"
	"sync"
)

// Member represents this rank in the world that one call of Connect has joined. A world is the set
// of ranks that have connected together. A Member is safe for concurrent use.
type Member struct {
	// These fields do not change after the member has joined.
	world     World
	client    *Client     // client of the store, without a prefix
	service   *service    // the server of the store; nil unless this process serves it
	keyPrefix string      // prefix of this world's keys in the store
	store     *Client     // client that adds keyPrefix to each key; nil before the prefix is known
	watcher   *endWatcher // nil if the server does not record which ranks have ended

	leaveOnce  sync.Once
	leaveError error // result of Leave
}

// readyKey is set by rank 0 when all ranks have joined, or when it gives up waiting for them. The
// value lists the absent ranks.
const readyKey = "ready"

// joinedKey returns the key that a rank sets when it joins the world.
func joinedKey(rank int) string { return "joined/" + strconv.Itoa(rank) }

// leftKey returns the key that a rank sets when it leaves the world.
func leftKey(rank int) string { return "left/" + strconv.Itoa(rank) }

// Close leaves the world without a reason. On the rank that serves the store, it waits up to
// closeTimeout for the other ranks to leave.
func (m *Member) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return m.Leave(ctx, "")
}

// MaxReasonBytes is the maximum length of the reason that Leave sends to the other ranks. It is far
// below the store's limit for values.
const MaxReasonBytes = 64 << 10

// Leave leaves the world. The other ranks receive the reason, unless it has more than
// MaxReasonBytes. Later calls have no effect and return the result of the first.
//
// A process can have several Members. In the process that serves the store, the last Member to
// leave waits for the other ranks to leave, or until ctx is done. It then closes the store.
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

	watcherErr := m.watcher.close() // m.watcher may be nil.
	if m.service != nil {
		serveErr := m.serveUntilLeft(ctx)
		return errors.Join(watcherErr, serveErr)
	}

	closeErr := m.client.Close()
	return errors.Join(watcherErr, closeErr)
}

// publishLeft stores the reason under leftKey. It prefers the watcher's connection, because rank 0
// may no longer accept new connections.
func (m *Member) publishLeft(ctx context.Context, reason []byte) {
	if m.watcher != nil {
		err := m.watcher.announceLeave(ctx, reason)
		if err == nil {
			return
		}
	}

	_ = m.store.Set(ctx, leftKey(m.world.Rank), reason) // fails if the store is gone
}

// serveUntilLeft closes this member's client. The last member of the process also closes the
// server. Before this, it waits until all other ranks have left or disconnected, or ctx is done.
func (m *Member) serveUntilLeft(ctx context.Context) error {
	isLast, leaveKeys := m.service.removeMember()
	if !isLast {
		return m.client.Close()
	}

	server := m.service.server
	ctx, cancel := context.WithCancel(ctx)
	findConnected := func(context.Context) []int { return server.connectedRanks(m.keyPrefix) }
	stopReports := reportLateRanks(ctx, m.world.ReportConnected, findConnected)
	defer stopReports()
	// Either of two events ends the wait: all ranks have set their leaveKeys, or all have
	// disconnected. The first one cancels ctx, which ends the wait for the other.
	var waiter sync.WaitGroup
	waiter.Go(func() {
		haveAllLeft := m.awaitLeft(ctx, leaveKeys)
		if haveAllLeft {
			cancel()
		}
	})
	_ = server.Drain(ctx) // The server is closed even if ranks are still connected.
	cancel()
	waiter.Wait()
	server.announceClosing()
	clientErr := m.client.Close()
	serverErr := server.Close()
	return errors.Join(clientErr, serverErr)
}

// awaitLeft waits until all leaveKeys are set, and returns true if they are. leaveKeys has a list
// for each world that all ranks have joined. If there is no such world, awaitLeft returns false at
// once, because the ranks may disconnect without setting keys.
func (m *Member) awaitLeft(ctx context.Context, leaveKeys [][]string) bool {
	for _, keys := range leaveKeys {
		if m.client.Wait(ctx, keys...) != nil {
			return false
		}
	}

	return len(leaveKeys) > 0
}
