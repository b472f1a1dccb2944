package rendezvous

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"
)

// endWatcher tracks which other ranks of a member's world have ended. It uses a separate connection
// to the store. When that connection is closed, the server records that this rank has ended.
type endWatcher struct {
	client *Client
	world  string
	rank   int
	// storeRank is the rank that serves the store, or -1 if no rank does.
	storeRank int

	cancel, release context.CancelFunc
	done            chan struct{}

	mu      sync.Mutex
	ends    map[int]*knownEnd // by rank; guarded by mu
	lost    bool              // whether the connection was lost; guarded by mu
	closing bool              // whether the store is closing normally; guarded by mu
	changed chan struct{}     // closed and replaced when ends or lost change; guarded by mu
}

type knownEnd struct {
	*EndedError
	since time.Time
	// fromLauncher is set if a launcher reported the end. The server's report is less precise.
	fromLauncher bool
}

// startWatch sends this rank's greeting over the connection of c and starts to watch. If the server
// does not record which ranks have ended, startWatch closes c and returns nil.
func startWatch(ctx context.Context, m *Member, c *Client) (*endWatcher, error) {
	w := &endWatcher{
		client: c, world: m.base, rank: m.world.Rank,
		storeRank: -1, ends: map[int]*knownEnd{}, changed: make(chan struct{}), done: make(chan struct{}),
	}
	if k := m.world.Route.Kind; k == RouteServe || k == RoutePMI {
		w.storeRank = 0
	}
	recordsEnds, err := greet(ctx, c, m.world.greeting(m.world.job(), m.base))
	if err != nil || !recordsEnds {
		return nil, errors.Join(err, c.Close())
	}
	ctx, w.release = context.WithDeadline(context.Background(), time.Now().Add(noDeadline))
	waitCtx, cancel := context.WithCancel(ctx)
	w.cancel = cancel
	go w.run(ctx, waitCtx)
	return w, nil
}

// noDeadline keeps calls of the client from adding the default deadline.
const noDeadline = 100 * 365 * 24 * time.Hour

// run processes the store's reports of ended ranks until waitCtx is canceled or the connection is
// lost. It uses waitCtx only for waits, because canceling any other request closes the connection.
func (w *endWatcher) run(ctx, waitCtx context.Context) {
	defer close(w.done)
	defer w.release()
	for n := 0; ; n++ {
		err := w.client.Wait(waitCtx, endKey(n))
		if waitCtx.Err() != nil {
			return
		}
		var value []byte
		if err == nil {
			value, err = w.client.Get(ctx, endKey(n))
		}
		if err != nil {
			w.markStoreLost()
			return
		}
		var e rankEnd
		switch {
		case json.Unmarshal(value, &e) != nil:
		case e.Closing:
			w.mu.Lock()
			w.closing = true
			w.mu.Unlock()
		case e.World == "":
			// The launcher does not report whether the rank left before its process exited.
			var why []byte
			why, e.Left, _ = WithPrefix(w.client, w.world).Peek(ctx, leftKey(e.Rank))
			if e.Left {
				e.Why = string(why)
			}
			w.recordEnd(e)
		case e.World == w.world:
			w.recordEnd(e)
		}
	}
}

// recordEnd records the first report that a rank has ended. A launcher's report replaces a report
// by the server.
func (w *endWatcher) recordEnd(e rankEnd) {
	w.mu.Lock()
	defer w.mu.Unlock()
	previous, fromLauncher := w.ends[e.Rank], e.World == ""
	if e.Rank == w.rank || previous != nil && (previous.fromLauncher || !fromLauncher) {
		return
	}
	end := &knownEnd{
		EndedError:   &EndedError{Rank: e.Rank, How: e.How, Left: e.Left, Why: e.Why},
		fromLauncher: fromLauncher,
	}
	if end.since = time.Now(); previous != nil {
		end.since, end.Left = previous.since, previous.Left || e.Left
		end.Why = cmp.Or(e.Why, previous.Why)
	}
	w.ends[e.Rank] = end
	w.notify()
}

func (w *endWatcher) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *endWatcher) markStoreLost() {
	w.mu.Lock()
	w.lost = true
	closing := w.closing
	w.notify()
	w.mu.Unlock()
	how := "rank 0, which served the store, has ended"
	if closing {
		how = "rank 0, which served the store, has left"
	}
	if w.storeRank >= 0 {
		w.recordEnd(rankEnd{World: w.world, Rank: w.storeRank, How: how, Left: closing})
	}
}

func (w *endWatcher) storeLost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *endWatcher) knownEnds() ([]*knownEnd, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*knownEnd, 0, len(w.ends))
	for _, end := range w.ends {
		all = append(all, end)
	}
	slices.SortFunc(all, func(a, b *knownEnd) int { return a.Rank - b.Rank })
	return all, w.changed
}

// await waits until a rank for which fatal returns true has ended, and until this has been known
// for the duration after. If ctx is done first, await returns nil.
func (w *endWatcher) await(
	ctx context.Context, after time.Duration, fatal func(context.Context, *EndedError) bool,
) *EndedError {
	for {
		all, changed := w.knownEnds()
		for _, end := range all {
			if fatal(ctx, end.EndedError) && sleep(ctx, time.Until(end.since.Add(after))) {
				return w.latest(end.Rank)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *endWatcher) latest(rank int) *EndedError {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ends[rank].EndedError
}

// sleep returns false if ctx is done first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *endWatcher) leave(ctx context.Context, why []byte) error {
	w.cancel()
	select {
	case <-w.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return WithPrefix(w.client, w.world).Set(ctx, leftKey(w.rank), why)
}

// close closes the connection, so that the server records that this rank has ended. w may be nil.
func (w *endWatcher) close() error {
	if w == nil {
		return nil
	}
	w.cancel()
	err := w.client.Close()
	<-w.done
	return err
}
