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
	// These fields do not change after the member has joined. service is nil unless this process
	// serves the store. watcher is nil if the server does not record which ranks have ended.
	world     World
	client    *Client
	service   *service
	keyPrefix string
	store     *Client // adds keyPrefix
	watcher   *endWatcher

	leaveOnce  sync.Once
	leaveError error
}

const readyKey = "ready"

func joinedKey(rank int) string { return "joined/" + strconv.Itoa(rank) }

func leftKey(rank int) string { return "left/" + strconv.Itoa(rank) }

// Close leaves the job. On the rank that serves the store, it first waits up to 30 s for the
// others.
func (m *Member) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return m.Leave(ctx, "")
}

// MaxReasonBytes is the maximum length of the reason for leaving.
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

// publishLeft prefers the watcher's connection, because rank 0 may no longer accept new
// connections.
func (m *Member) publishLeft(ctx context.Context, reason []byte) {
	if m.watcher != nil && m.watcher.announceLeave(ctx, reason) == nil {
		return
	}
	_ = m.store.Set(ctx, leftKey(m.world.Rank), reason)
}

// serveUntilLeft lets the last member close the server when all other ranks have left or
// disconnected, or when ctx is done.
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
	_ = m.service.server.Drain(ctx)
	cancel()
	waiter.Wait()
	m.service.server.announceClosing()
	return errors.Join(m.client.Close(), m.service.server.Close())
}

// awaitLeft returns false if there are no keys, because ranks do not announce that they leave a
// world that some rank did not join.
func (m *Member) awaitLeft(ctx context.Context, leaveKeys [][]string) bool {
	for _, keys := range leaveKeys {
		if m.client.Wait(ctx, keys...) != nil {
			return false
		}
	}
	return len(leaveKeys) > 0
}
