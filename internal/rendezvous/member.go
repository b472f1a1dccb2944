package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Member is one rank's part in one Connect. It is in one of three states: opened, once it has a
// client; present, once all ranks are there; and left, after Close. It is safe for concurrent use
// once it is present.
//
// Its keys, all under one prefix: joined/<rank> and left/<rank> say what each rank did, and
// ready says that rank 0 saw all come. The value of ready is empty, or the ranks that did not.
type Member struct {
	// Immutable once opened. service is nil unless this rank serves the store, and watch is nil
	// where the server does not record ends.
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

// joinAll makes the member present. If the context ends first it names the ranks that are absent.
func (m *Member) joinAll(ctx context.Context) error {
	err := m.join(ctx)
	if err == nil {
		err = m.awaitRanks(ctx)
	}
	if err != nil && ctx.Err() != nil && m.store != nil && !errors.As(err, new(*EndedError)) {
		if absent := m.absent(ctx); len(absent) > 0 {
			err = &AbsentError{
				Ranks: absent, Size: m.world.Size,
				Err: fmt.Errorf("%w%s", context.Cause(ctx), m.otherSize(ctx, absent)),
			}
		}
	}
	var missing *AbsentError
	if m.world.Rank != 0 || err != nil && !errors.As(err, &missing) {
		return err
	}
	var absent []int
	if missing != nil {
		absent = missing.Ranks
	}
	return errors.Join(err, m.publishReady(ctx, absent))
}

// awaitRanks waits until all ranks are there, or the launcher says that one will not come.
func (m *Member) awaitRanks(ctx context.Context) (err error) {
	watched, stop := m.guard(ctx, launcherDelay, m.fatalToConnect)
	defer stop()
	defer m.warnLate(ctx, m.absent)()
	if m.world.Rank == 0 {
		err = m.store.Wait(watched, m.others(joinedKey)...)
	} else {
		err = m.awaitReady(watched)
	}
	if err == nil {
		return nil
	}
	if ended := m.ended(watched); ended != nil {
		return ended
	}
	return m.addEnd(err)
}

// join finds the keys of this call and announces this rank. An exchange that began in time
// continues for at most leaveTimeout after the deadline: to cut it off would cost the connection,
// and once no rank has one, rank 0 closes the store that could say which rank is absent.
func (m *Member) join(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := outlasting(ctx, leaveTimeout)
	defer cancel()
	base := m.world.job()
	var watching *Client
	if m.world.Size > 1 {
		var err error
		if watching, err = m.claim(ctx, base); err != nil {
			return err
		}
	}
	// Each rank counts its own calls. As all ranks call equally often, the counts agree.
	turn, err := m.client.Add(ctx, fmt.Sprintf("%s/turn/%d", base, m.world.Rank), 1)
	if err != nil {
		if watching != nil {
			err = errors.Join(err, watching.Close())
		}
		return err
	}
	m.base = fmt.Sprintf("%s/%d", base, turn)
	m.store = WithPrefix(m.client, m.base)
	if watching != nil {
		if m.watch, err = startWatch(ctx, m, watching); err != nil {
			return err
		}
		size := strconv.Itoa(m.world.Size)
		if err := m.client.Set(ctx, m.world.sizeKey(m.world.Rank), []byte(size)); err != nil {
			return err
		}
	}
	return m.store.Set(ctx, joinedKey(m.world.Rank), nil)
}

// others are the keys of one kind of all ranks but 0.
func (m *Member) others(key func(rank int) string) []string {
	keys := make([]string, 0, m.world.Size)
	for rank := 1; rank < m.world.Size; rank++ {
		keys = append(keys, key(rank))
	}
	return keys
}

// publishReady stores which ranks are absent. The deadline may have passed by now.
func (m *Member) publishReady(ctx context.Context, absent []int) error {
	words := make([]string, len(absent))
	for i, rank := range absent {
		words[i] = strconv.Itoa(rank)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	return m.store.Set(ctx, readyKey, []byte(strings.Join(words, ",")))
}

// awaitReady waits until rank 0 has seen all ranks, or has given up.
func (m *Member) awaitReady(ctx context.Context) error {
	if err := m.store.Wait(ctx, readyKey); err != nil {
		return err
	}
	// It is there, so it is read, also where the time is up by now.
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	value, err := m.store.Get(reading, readyKey)
	if err != nil || len(value) == 0 {
		return err
	}
	return &AbsentError{
		Ranks: ranksIn(string(value)), Size: m.world.Size,
		Err: errors.New("rank 0 gave up waiting"),
	}
}

// absent asks which other ranks have not joined. The deadline has passed by now.
func (m *Member) absent(ctx context.Context) (ranks []int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	for rank := range m.world.Size {
		if rank == m.world.Rank {
			continue
		}
		if _, there, err := m.store.Peek(ctx, joinedKey(rank)); err == nil && !there {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Close is Leave with at most 30 s for the others to leave, too.
func (m *Member) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return m.Leave(ctx, "")
}

// MaxWhy bounds what a rank says of why it leaves, in bytes.
const MaxWhy = 64 << 10

// Leave leaves the job. On the rank that serves the store the last Member waits until the others
// have left, too, or the context ends, since the others lose their store after that. It may be
// called more than once and by several goroutines; the first call counts.
//
// A rank that leaves because of a failure passes the reason, which the others find unchanged in
// their EndedError. Text beyond MaxWhy bytes is cut off.
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

// publishLeft stores that this rank leaves. It uses the connection of its watch: the server takes
// the end of that connection for the end of the process unless the key is there, and once rank 0
// drains the server, a rank that has lost its other connection cannot open a new one. Without a
// store no rank is left that could read the key.
func (m *Member) publishLeft(ctx context.Context, why []byte) {
	if m.watch != nil && m.watch.leave(ctx, why) == nil {
		return
	}
	_ = m.store.Set(ctx, leftKey(m.world.Rank), why)
}

// serveUntilLeft serves until every other rank has said that it leaves, or is gone, or time is up,
// if this is the last member that serves. Ranks that are gone have no connection; those that have
// left may already have one more, for their next Connect, which they will make again when the
// server closes.
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

// allLeft waits until all keys are there. If no world was entered, no rank will announce that it
// leaves.
func (m *Member) allLeft(ctx context.Context, left [][]string) bool {
	for _, keys := range left {
		if m.client.Wait(ctx, keys...) != nil {
			return false
		}
	}
	return len(left) > 0
}
