package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// member is one rank's part in one Connect. It is in one of three states: opened, once it has a
// client; present, once all ranks are there; and left, after Close.
//
// Its keys, all under one prefix: joined/<rank> and left/<rank> say what each rank did, and
// ready says that rank 0 saw all come. The value of ready is empty, or the ranks that did not.
type member struct {
	// Immutable once opened. Service is nil unless this rank serves the store.
	world   World
	client  *Client
	service *service
	store   Store
	base    string // the prefix of the store's keys
	linger  time.Duration

	leave sync.Once
	err   error
}

// arrive makes the member present. If the context ends first it names the ranks that are absent.
func (m *member) arrive(ctx context.Context) error {
	err := m.join(ctx)
	if err == nil {
		err = m.meet(ctx)
	}
	if err != nil && ctx.Err() != nil && m.store != nil {
		if absent := m.absent(ctx); len(absent) > 0 {
			err = &AbsentError{Ranks: absent, Size: m.world.Size, Err: context.Cause(ctx)}
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
	return errors.Join(err, m.announce(ctx, absent))
}

// meet waits until all ranks are there, or the launcher tells that one will not come.
func (m *member) meet(ctx context.Context) (err error) {
	watched, stop := m.watch(ctx, m.missed)
	defer stop()
	if m.world.Rank == 0 {
		err = m.store.Wait(watched, m.others("joined")...)
	} else {
		err = m.await(watched)
	}
	if ended := m.ended(watched); err != nil && ended != nil {
		return ended
	}
	return err
}

// join finds this call's keys, and says that this rank is there. What has begun in time it ends,
// for at most leaveWait after the deadline: to be cut off costs the connection, and once no rank
// has one, rank 0 closes the store that could tell who is absent.
func (m *member) join(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := outlasting(ctx, leaveWait)
	defer cancel()
	run := m.world.RunID
	if run == "" {
		run = "none"
	}
	base := fmt.Sprintf("symmem/%s/%d/%d", run, m.world.Restart, m.world.Size)
	// Each rank counts its calls by itself. As all call equally often, the counts agree.
	turn, err := m.client.Add(ctx, fmt.Sprintf("%s/turn/%d", base, m.world.Rank), 1)
	if err != nil {
		return err
	}
	m.base = fmt.Sprintf("%s/%d", base, turn)
	m.store = WithPrefix(m.client, m.base)
	return m.store.Set(ctx, m.key("joined", m.world.Rank), nil)
}

func (m *member) key(kind string, rank int) string {
	return kind + "/" + strconv.Itoa(rank)
}

// others are the keys of one kind of all ranks but 0.
func (m *member) others(kind string) []string {
	keys := make([]string, 0, m.world.Size)
	for rank := 1; rank < m.world.Size; rank++ {
		keys = append(keys, m.key(kind, rank))
	}
	return keys
}

// announce tells the others which ranks are absent. The deadline may have passed by now.
func (m *member) announce(ctx context.Context, absent []int) error {
	words := make([]string, len(absent))
	for i, rank := range absent {
		words[i] = strconv.Itoa(rank)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWait)
	defer cancel()
	return m.store.Set(ctx, "ready", []byte(strings.Join(words, ",")))
}

// await waits until rank 0 has seen all ranks, or has given up.
func (m *member) await(ctx context.Context) error {
	value, err := m.store.Get(ctx, "ready")
	if err != nil || len(value) == 0 {
		return err
	}
	return &AbsentError{
		Ranks: ranksIn(string(value)), Size: m.world.Size,
		Err: errors.New("rank 0 gave up waiting"),
	}
}

// absent asks which other ranks have not joined. The deadline has passed by now.
func (m *member) absent(ctx context.Context) (ranks []int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWait)
	defer cancel()
	for rank := range m.world.Size {
		if rank == m.world.Rank {
			continue
		}
		if there, err := m.has(ctx, m.store, m.key("joined", rank)); err == nil && !there {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// Close leaves the job. It may be called more than once, and by several goroutines.
func (m *member) Close() error {
	m.leave.Do(func() { m.err = m.close() })
	return m.err
}

func (m *member) close() error {
	if m.service != nil {
		return m.serveOut()
	}
	if m.store != nil && m.world.Size > 1 {
		ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
		defer cancel()
		// Without a store there is nobody left to tell.
		_ = m.store.Set(ctx, m.key("left", m.world.Rank), nil)
	}
	return m.client.Close()
}

// serveOut serves until every other rank has said that it leaves, or is gone, or time is up, if
// this is the last member that serves. Ranks that are gone have no connection; those that have left
// may already have one more, for their next Connect, which they will make again when the server
// closes.
func (m *member) serveOut() error {
	last, left := m.service.leave()
	if !last {
		return m.client.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.linger)
	var watch sync.WaitGroup
	watch.Go(func() {
		if m.allLeft(ctx, left) {
			cancel()
		}
	})
	_ = m.service.server.Drain(ctx)
	cancel()
	watch.Wait()
	return errors.Join(m.client.Close(), m.service.server.Close())
}

// allLeft waits until all keys are there. Where no world was entered nobody will say that it
// leaves.
func (m *member) allLeft(ctx context.Context, left [][]string) bool {
	for _, keys := range left {
		if m.client.Wait(ctx, keys...) != nil {
			return false
		}
	}
	return len(left) > 0
}
