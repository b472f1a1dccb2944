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

// endWatcher records which other ranks of a world have ended. When its separate connection to the
// store is closed, the server records that this rank has ended.
type endWatcher struct {
	client    *Client // of the separate connection
	keyPrefix string  // of the world
	rank      int     // this rank
	storeRank int     // rank that serves the store, or -1

	cancelWait context.CancelFunc // ends run, without closing the connection
	cancelAll  context.CancelFunc // releases the context of run
	done       chan struct{}      // closed when run returns

	mu          sync.Mutex         // guards the fields below
	ends        map[int]*endReport // by rank
	isStoreLost bool               // the connection has ended, or the store has announced its end
	changed     chan struct{}      // closed and replaced when a field above changes
}

// endReport is the most precise report of the end of a rank so far.
type endReport struct {
	*EndedError
	firstReport    time.Time // when the first report about the rank arrived
	isFromLauncher bool      // reported by a launcher, which is more precise than the server
}

// startEndWatcher sends a greeting over c and starts an endWatcher, which takes ownership of c. It
// returns nil, and closes c, if the server does not record which ranks have ended.
func startEndWatcher(ctx context.Context, m *Member, c *Client) (*endWatcher, error) {
	w := &endWatcher{
		client: c, keyPrefix: m.keyPrefix, rank: m.world.Rank,
		storeRank: -1, ends: map[int]*endReport{},
		changed: make(chan struct{}), done: make(chan struct{}),
	}
	if k := m.world.Route.Kind; k == RouteServe || k == RoutePMI {
		w.storeRank = 0
	}
	recordsEnds, err := sendGreeting(ctx, c, m.world.greeting(m.world.jobPrefix(), m.keyPrefix))
	if err != nil || !recordsEnds {
		return nil, errors.Join(err, c.Close())
	}
	ctx, w.cancelAll = context.WithDeadline(context.Background(), time.Now().Add(unlimitedTime))
	waitCtx, cancel := context.WithCancel(ctx)
	w.cancelWait = cancel
	go w.run(ctx, waitCtx)
	return w, nil
}

// unlimitedTime prevents calls of the client from adding the default deadline.
const unlimitedTime = 100 * 365 * 24 * time.Hour

// run reads the server's reports until the store ends or waitCtx is canceled. It uses waitCtx only
// for waits, because canceling any other request closes the connection.
func (w *endWatcher) run(ctx, waitCtx context.Context) {
	defer close(w.done)
	defer w.cancelAll()
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
			w.markStoreLost(errors.Is(err, errLeft))
			return
		}
		var e rankEnd
		switch {
		case json.Unmarshal(value, &e) != nil: // A malformed report is ignored.
		case e.IsStoreClosing:
			w.markStoreLost(true)
			_ = w.client.Close() // The server waits for it.
			return
		case e.KeyPrefix == "":
			// The launcher reports the exit of a process, but not whether its rank left before.
			var reason []byte
			reason, e.HasLeft, _ = WithPrefix(w.client, w.keyPrefix).Peek(ctx, leftKey(e.Rank))
			if e.HasLeft {
				e.Reason = string(reason)
			}
			w.recordEnd(e)
		case e.KeyPrefix == w.keyPrefix:
			w.recordEnd(e)
		}
	}
}

// recordEnd records a report about another rank. It keeps the first report about each rank, but a
// launcher's report replaces the server's.
func (w *endWatcher) recordEnd(e rankEnd) {
	w.mu.Lock()
	defer w.mu.Unlock()
	previous := w.ends[e.Rank]
	isFromLauncher := e.KeyPrefix == ""
	isMorePrecise := previous == nil || isFromLauncher && !previous.isFromLauncher
	if e.Rank == w.rank || !isMorePrecise {
		return
	}
	end := &endReport{
		EndedError: &EndedError{
			Rank: e.Rank, Description: e.Description, HasLeft: e.HasLeft, Reason: e.Reason,
		},
		isFromLauncher: isFromLauncher,
	}
	end.firstReport = time.Now()
	if previous != nil {
		end.firstReport = previous.firstReport
		end.HasLeft = previous.HasLeft || e.HasLeft
		end.Reason = cmp.Or(e.Reason, previous.Reason)
	}
	w.ends[e.Rank] = end
	w.notifyChange()
}

// notifyChange wakes the goroutines that wait for a change. The caller must hold w.mu.
func (w *endWatcher) notifyChange() {
	close(w.changed)
	w.changed = make(chan struct{})
}

const storeRankEnded = "rank 0, which served the store, has ended"

// markStoreLost records the end of the store and, if a rank served it, the end of that rank.
// hasLeft must be set if the store has announced that it closes.
func (w *endWatcher) markStoreLost(hasLeft bool) {
	w.mu.Lock()
	w.isStoreLost = true
	w.notifyChange()
	w.mu.Unlock()
	description := storeRankEnded
	if hasLeft {
		description = "rank 0, which served the store, has left"
	}
	if w.storeRank >= 0 {
		w.recordEnd(rankEnd{
			KeyPrefix: w.keyPrefix, Rank: w.storeRank, Description: description, HasLeft: hasLeft,
		})
	}
}

// endOfStore returns the end of the rank that served the store, after an error of another
// connection. It waits up to rankEndGrace until the watcher loses its connection too. It returns
// nil if it does not, or if the store closed normally.
func (w *endWatcher) endOfStore() *EndedError {
	select {
	case <-w.done:
	case <-time.After(rankEndGrace):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	end := w.ends[w.storeRank]
	if !w.isStoreLost || end == nil || end.HasLeft {
		return nil
	}
	return end.EndedError
}

func (w *endWatcher) hasLostStore() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.isStoreLost
}

// reports returns the reports so far, ordered by rank, and a channel that is closed at the next
// change.
func (w *endWatcher) reports() ([]*endReport, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	reports := make([]*endReport, 0, len(w.ends))
	for _, end := range w.ends {
		reports = append(reports, end)
	}
	slices.SortFunc(reports, func(a, b *endReport) int { return a.Rank - b.Rank })
	return reports, w.changed
}

// awaitEnd waits until a rank for which isFatal returns true has ended, and delay has passed since
// the first report. It returns nil if ctx is done first.
func (w *endWatcher) awaitEnd(
	ctx context.Context, delay time.Duration, isFatal func(context.Context, *EndedError) bool,
) *EndedError {
	for {
		reports, changed := w.reports()
		for _, end := range reports {
			if isFatal(ctx, end.EndedError) && sleep(ctx, time.Until(end.firstReport.Add(delay))) {
				return w.endOf(end.Rank)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *endWatcher) endOf(rank int) *EndedError {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ends[rank].EndedError
}

// sleep waits for d. It returns false if ctx is done first.
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

// announceLeave sets this rank's leftKey to the reason over the watcher's connection, after run
// has ended.
func (w *endWatcher) announceLeave(ctx context.Context, reason []byte) error {
	w.cancelWait()
	select {
	case <-w.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return WithPrefix(w.client, w.keyPrefix).Set(ctx, leftKey(w.rank), reason)
}

// close closes the connection, so that the server records that this rank has ended. w may be nil.
func (w *endWatcher) close() error {
	if w == nil {
		return nil
	}
	w.cancelWait()
	err := w.client.Close()
	<-w.done
	return err
}
