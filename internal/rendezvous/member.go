package rendezvous

import (
	"context"
	"errors"
	"strconv"
	"sync"
)

// Member represents this rank in one Connect. It is opened, once it has a client; present, once all
// ranks have joined; and left, after Close. It is safe for concurrent use once it is present.
//
// All its keys have one prefix. joined/<rank> and left/<rank> record the steps of each rank, and
// ready is set when rank 0 has seen all ranks join. The value of ready is empty, or lists the ranks
// that did not.
type Member struct {
	// Immutable once opened. service is nil unless this rank serves the store, and watch is nil if
	// the server does not record ends.
	world   World
	client  *Client
	service *service
	store   *Client
	base    string // the prefix of the store's keys
	watch   *endWatcher

	leave sync.Once
	err   error
}

const readyKey = "ready"

func joinedKey(rank int) string { return "joined/" + strconv.Itoa(rank) }

func leftKey(rank int) string { return "left/" + strconv.Itoa(rank) }

// Close leaves the job and gives the other ranks at most 30 s to leave, too.
func (m *Member) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return m.Leave(ctx, "")
}

// MaxWhy limits the reason that a rank gives for leaving, in bytes.
const MaxWhy = 64 << 10

// Leave leaves the job. On the rank that serves the store, the last Member waits until the other
// ranks have left, too, or the context ends, since they lose their store after that. It may be
// called more than once and by several goroutines; only the first call has an effect.
//
// A rank that leaves because of a failure passes the reason, which the other ranks get unchanged in
// their EndedError. A reason longer than MaxWhy bytes is dropped.
func (m *Member) Leave(ctx context.Context, why string) error {
	if len(why) > MaxWhy {
		why = ""
	}
	m.leave.Do(func() { m.err = m.leaveWorld(ctx, why) })
	return m.err
}

func (m *Member) leaveWorld(ctx context.Context, why string) error {
	if m.store != nil && m.world.Size > 1 {
		telling, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		m.publishLeft(telling, []byte(why))
	}
	err := m.watch.close()
	if m.service != nil {
		return errors.Join(err, m.serveUntilLeft(ctx))
	}
	return errors.Join(err, m.client.Close())
}

// publishLeft stores that this rank leaves, over the connection of its watch: the server treats the
// end of that connection as the end of the process unless the key is set, and once rank 0 drains
// the server, a rank that has lost its other connection cannot open a new one. Without a store no
// rank is left that could read the key.
func (m *Member) publishLeft(ctx context.Context, why []byte) {
	if m.watch != nil && m.watch.leave(ctx, why) == nil {
		return
	}
	_ = m.store.Set(ctx, leftKey(m.world.Rank), why)
}

// serveUntilLeft serves until every other rank has announced that it leaves, or has ended, or the
// context ends, if this is the last member that serves. Ranks that have ended have no connection.
// Ranks that have left may already have another one, for their next Connect, which they retry when
// the server closes.
func (m *Member) serveUntilLeft(ctx context.Context) error {
	last, left := m.service.leave()
	if !last {
		return m.client.Close()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer warnOf(ctx, m.world.LateToLeave, func(context.Context) []int {
		return m.service.server.greeted(m.base)
	})()
	var watch sync.WaitGroup
	watch.Go(func() {
		if m.allLeft(ctx, left) {
			cancel()
		}
	})
	_ = m.service.server.Drain(ctx)
	cancel()
	watch.Wait()
	m.service.server.announceClosing()
	return errors.Join(m.client.Close(), m.service.server.Close())
}

// allLeft waits until all keys are set. It returns false if no world was entered, since then no
// rank will announce that it leaves.
func (m *Member) allLeft(ctx context.Context, left [][]string) bool {
	for _, keys := range left {
		if m.client.Wait(ctx, keys...) != nil {
			return false
		}
	}
	return len(left) > 0
}
