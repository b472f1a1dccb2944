package rendezvous

import (
	"context"
	"errors"
	"strconv"
	"sync"
)

// Member represents this rank in the world that one call of Connect has joined. Once all ranks have
// joined, it is safe for concurrent use.
//
// All keys of a member have the same prefix. A rank sets joined/<rank> when it joins and
// left/<rank> when it leaves. When rank 0 stops waiting for the others, it sets ready to the list
// of ranks that have not joined, which is empty if all have.
type Member struct {
	// These fields are immutable once the member has joined. service is nil unless this rank serves
	// the store. watch is nil if the server does not record which ranks have ended.
	world   World
	client  *Client
	service *service
	store   *Client
	base    string // prefix of the store's keys
	watch   *endWatcher

	leave sync.Once
	err   error
}

const readyKey = "ready"

func joinedKey(rank int) string { return "joined/" + strconv.Itoa(rank) }

func leftKey(rank int) string { return "left/" + strconv.Itoa(rank) }

// Close leaves the job. On the rank that serves the store, it first waits up to 30 s for the other
// ranks to leave.
func (m *Member) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return m.Leave(ctx, "")
}

// MaxWhy is the maximum length in bytes of the reason that a rank can give for leaving.
const MaxWhy = 64 << 10

// Leave leaves the job. In the process that serves the store, the last Member to leave waits until
// the other ranks have left or the context ends, and then closes the store. Leave is safe for
// concurrent use; only the first call has an effect.
//
// A rank that leaves because of a failure passes the reason as why, and the other ranks receive it
// unchanged in EndedError.Why. A reason longer than MaxWhy bytes is dropped.
func (m *Member) Leave(ctx context.Context, why string) error {
	if len(why) > MaxWhy {
		why = ""
	}
	m.leave.Do(func() { m.err = m.leaveWorld(ctx, why) })
	return m.err
}

func (m *Member) leaveWorld(ctx context.Context, why string) error {
	if m.store != nil && m.world.Size > 1 {
		publishCtx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		m.publishLeft(publishCtx, []byte(why))
	}
	err := m.watch.close()
	if m.service != nil {
		return errors.Join(err, m.serveUntilLeft(ctx))
	}
	return errors.Join(err, m.client.Close())
}

// publishLeft sets the key that announces that this rank leaves. Without it, the server would take
// the end of the watch's connection for the end of the process. publishLeft prefers to use that
// connection, because rank 0 accepts no new ones once it has begun to drain the server. It ignores
// errors, because no rank can read the key if the store is lost.
func (m *Member) publishLeft(ctx context.Context, why []byte) {
	if m.watch != nil && m.watch.leave(ctx, why) == nil {
		return
	}
	_ = m.store.Set(ctx, leftKey(m.world.Rank), why)
}

// serveUntilLeft removes this member from its service. The last member closes the server once every
// other rank has announced that it leaves or has disconnected, or when the context ends. Ranks that
// have left may already be connected again for their next Connect, which then retries.
func (m *Member) serveUntilLeft(ctx context.Context) error {
	last, left := m.service.leave()
	if !last {
		return m.client.Close()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer warnLate(ctx, m.world.LateToLeave, func(context.Context) []int {
		return m.service.server.connectedRanks(m.base)
	})()
	var waiter sync.WaitGroup
	waiter.Go(func() {
		if m.allLeft(ctx, left) {
			cancel()
		}
	})
	_ = m.service.server.Drain(ctx)
	cancel()
	waiter.Wait()
	m.service.server.announceClosing()
	return errors.Join(m.client.Close(), m.service.server.Close())
}

// allLeft waits until all keys are set, and reports whether they are. If there are no keys, it
// returns false, because the ranks of an incomplete world do not announce that they leave.
func (m *Member) allLeft(ctx context.Context, left [][]string) bool {
	for _, keys := range left {
		if m.client.Wait(ctx, keys...) != nil {
			return false
		}
	}
	return len(left) > 0
}
