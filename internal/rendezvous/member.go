package rendezvous

import (
	"context"
	"errors"
	"strconv"
	"sync"
)

// Suppose that two ranks call Connect together. They form a world, and each gets a Member. The
// Members coordinate by keys of the store. The keys of this world begin with a common prefix:
//
//   - When rank 1 joins the world, it sets "joined/1". Rank 0 waits for this key and sets "ready".
//   - When rank 1 leaves the world, it sets "left/1" to its reason.
//   - Rank 0 serves the store. When it leaves, it waits for "left/1", or until rank 1 has
//     disconnected. Then it closes the store.

// Member represents this rank in a world. A Member is safe for concurrent use.
type Member struct {
	// These fields do not change after the Member has joined.
	world     World
	client    *Client     // client of the store; adds no prefix to keys
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
// below the store's limit for values, 8 MiB.
const MaxReasonBytes = 64 << 10

// Leave leaves the world and closes the Member's client. The other ranks receive the reason, unless
// it has more than MaxReasonBytes. Later calls have no effect and return the result of the first.
//
// The process that serves the store can have several Members. The last one to leave waits for the
// other ranks to leave, or until ctx is done. It then closes the store.
func (m *Member) Leave(ctx context.Context, reason string) error {
	if len(reason) > MaxReasonBytes {
		reason = ""
	}

	m.leaveOnce.Do(func() { m.leaveError = m.leaveWorld(ctx, reason) })
	return m.leaveError
}

// leaveWorld announces that this rank leaves, and closes its connections or the store.
func (m *Member) leaveWorld(ctx context.Context, reason string) error {
	isPrefixKnown := m.store != nil
	if isPrefixKnown && m.world.Size > 1 {
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

// publishLeft sets this rank's leftKey to the reason. It prefers the watcher's connection, because
// rank 0 may no longer accept new connections.
func (m *Member) publishLeft(ctx context.Context, reason []byte) {
	if m.watcher != nil {
		err := m.watcher.announceLeave(ctx, reason)
		if err == nil {
			return
		}
	}

	_ = m.store.Set(ctx, leftKey(m.world.Rank), reason) // fails if the store is gone
}

// serveUntilLeft closes this Member's client. The last Member of the process also closes the store,
// after it has waited for the other ranks.
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
	m.awaitOthers(ctx, cancel, leaveKeys)
	server.announceClosing()
	clientErr := m.client.Close()
	serverErr := server.Close()
	return errors.Join(clientErr, serverErr)
}

// awaitOthers waits until the other ranks have set leaveKeys, or until all of them have
// disconnected, or until ctx is done. Then it calls cancel, which cancels ctx.
func (m *Member) awaitOthers(ctx context.Context, cancel func(), leaveKeys [][]string) {
	var waiter sync.WaitGroup
	waiter.Go(func() {
		haveAllLeft := m.awaitLeft(ctx, leaveKeys)
		if haveAllLeft {
			cancel() // ends Drain
		}
	})
	_ = m.service.server.Drain(ctx) // waits until all have disconnected, or ctx is done
	cancel()                        // ends awaitLeft
	waiter.Wait()
}

// awaitLeft waits until all leaveKeys are set, and returns true if they are. leaveKeys has a list
// for each world that all ranks have joined. If there is no such world, awaitLeft returns false at
// once, because the ranks may disconnect without setting keys.
func (m *Member) awaitLeft(ctx context.Context, leaveKeys [][]string) bool {
	for _, keys := range leaveKeys {
		err := m.client.Wait(ctx, keys...)
		if err != nil {
			return false
		}
	}

	return len(leaveKeys) > 0
}
