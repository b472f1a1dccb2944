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

// endWatcher records which other ranks of a world have ended. A world is the set of ranks that
// have connected together.
//
// The watcher uses a connection to the store that nothing else uses. When this connection closes,
// the server records that this rank has ended.
type endWatcher struct {
	client    *Client // uses only the watcher's connection
	keyPrefix string  // prefix of the world's keys in the store
	rank      int     // this rank
	storeRank int     // rank that serves the store, or -1 if no rank does

	cancelWait context.CancelFunc // makes run return, without closing the connection
	cancelAll  context.CancelFunc // releases the timer of run's context; called by run
	done       chan struct{}      // closed when run returns

	mu          sync.Mutex         // guards the fields below
	ends        map[int]*endReport // by rank; nil for ranks without a report
	isStoreLost bool               // the connection has ended, or the store has announced its end
	changed     chan struct{}      // closed and replaced when ends or isStoreLost changes
}

// endReport describes the end of a rank. A more precise report may replace it.
type endReport struct {
	*EndedError
	firstReport    time.Time // when the first report about the rank arrived
	isFromLauncher bool      // a launcher knows the exit status, so its report is more precise
}

// unlimitedTime is a timeout that never expires. It prevents the client from adding its default
// deadline to calls.
const unlimitedTime = 100 * 365 * 24 * time.Hour

// startEndWatcher takes ownership of c, sends a greeting over it and starts an endWatcher. If the
// server does not record which ranks have ended, it closes c and returns nil without an error.
func startEndWatcher(ctx context.Context, m *Member, c *Client) (*endWatcher, error) {
	w := &endWatcher{
		client:    c,
		keyPrefix: m.keyPrefix,
		rank:      m.world.Rank,
		storeRank: -1,
		ends:      map[int]*endReport{},
		changed:   make(chan struct{}),
		done:      make(chan struct{}),
	}
	kind := m.world.Route.Kind
	isServedByRank := kind == RouteServe || kind == RoutePMI
	if isServedByRank {
		w.storeRank = 0
	}

	g := m.world.claimGreeting()
	g.KeyPrefix = m.keyPrefix
	recordsEnds, err := sendGreeting(ctx, c, g)
	if err != nil || !recordsEnds {
		closeErr := c.Close()
		return nil, errors.Join(err, closeErr)
	}

	runCtx, cancelAll := context.WithTimeout(context.Background(), unlimitedTime)
	w.cancelAll = cancelAll
	waitCtx, cancelWait := context.WithCancel(runCtx)
	w.cancelWait = cancelWait
	go w.run(runCtx, waitCtx)
	return w, nil
}

// run reads the server's reports until the store ends or waitCtx is canceled. It uses waitCtx only
// for waits, because canceling any other request closes the connection.
func (w *endWatcher) run(ctx, waitCtx context.Context) {
	defer close(w.done)
	defer w.cancelAll()
	// The server stores its reports under endKey(0), endKey(1) and so on.
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
			hasLeft := errors.Is(err, errLeft)
			w.markStoreLost(hasLeft)
			return
		}

		var e rankEnd
		if json.Unmarshal(value, &e) != nil {
			continue // A malformed report is ignored.
		}

		if e.IsStoreClosing {
			const hasLeft = true
			w.markStoreLost(hasLeft)
			_ = w.client.Close() // The closing server waits until its clients disconnect.
			return
		}

		w.handleReport(ctx, e)
	}
}

// handleReport records a report, unless it is about a rank of another world.
func (w *endWatcher) handleReport(ctx context.Context, e rankEnd) {
	isFromLauncher := e.KeyPrefix == ""
	if !isFromLauncher && e.KeyPrefix != w.keyPrefix {
		return
	}

	if isFromLauncher {
		// The launcher reports the exit of a process, but not whether its rank left before. If Peek
		// fails, the rank counts as not having left.
		reason, hasLeft, _ := WithPrefix(w.client, w.keyPrefix).Peek(ctx, leftKey(e.Rank))
		e.HasLeft = hasLeft
		if hasLeft {
			e.Reason = string(reason)
		}
	}

	w.recordEnd(e)
}

// recordEnd records a report about another rank, and ignores reports about this rank. The first
// report about a rank stays, except that a launcher's report replaces the server's.
func (w *endWatcher) recordEnd(e rankEnd) {
	w.mu.Lock()
	defer w.mu.Unlock()
	previous := w.ends[e.Rank]
	isFromLauncher := e.KeyPrefix == ""
	isMorePrecise := previous == nil || (isFromLauncher && !previous.isFromLauncher)
	if e.Rank == w.rank || !isMorePrecise {
		return
	}

	end := &endReport{
		EndedError: &EndedError{
			Rank: e.Rank, Description: e.Description, HasLeft: e.HasLeft, Reason: e.Reason,
		},
		firstReport:    time.Now(),
		isFromLauncher: isFromLauncher,
	}
	if previous != nil {
		// The new report may lack what the previous one says about leaving.
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

// storeRankEnded describes the end of the rank that served the store. It is always rank 0.
const storeRankEnded = "rank 0, which served the store, has ended"

// markStoreLost records the end of the store and, if a rank served it, the end of that rank.
// hasLeft means that the store has announced that it closes.
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

// endOfStore explains an error of another connection: it returns the end of the rank that served
// the store. First it waits up to rankEndGrace for the end of the watcher's connection. It returns
// nil if that connection is still open afterwards, or if the store closed normally.
func (w *endWatcher) endOfStore() *EndedError {
	select {
	case <-w.done:
	case <-time.After(rankEndGrace):
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	end := w.ends[w.storeRank] // nil if storeRank is -1
	hasEnded := w.isStoreLost && end != nil && !end.HasLeft
	if !hasEnded {
		return nil
	}

	return end.EndedError
}

// hasLostStore reports whether the watcher's connection or the store has ended.
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

// awaitEnd waits for the end of a rank for which isFatal returns true. When delay has passed since
// the first report about the rank, awaitEnd returns the most precise report. It returns nil if ctx
// is done first. isFatal can use ctx for requests to the store.
func (w *endWatcher) awaitEnd(
	ctx context.Context, delay time.Duration, isFatal func(context.Context, *EndedError) bool,
) *EndedError {
	for {
		reports, changed := w.reports()
		for _, end := range reports {
			if !isFatal(ctx, end.EndedError) {
				continue
			}

			hasSlept := sleep(ctx, time.Until(end.firstReport.Add(delay)))
			if !hasSlept {
				return nil // ctx is done.
			}

			// A more precise report may have arrived meanwhile.
			return w.endOf(end.Rank)
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// endOf returns the most precise report about a rank, which must have ended.
func (w *endWatcher) endOf(rank int) *EndedError {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ends[rank].EndedError
}

// announceLeave stores the reason under this rank's leftKey, which means that the rank has left.
// It uses the watcher's connection, so it first makes run return.
func (w *endWatcher) announceLeave(ctx context.Context, reason []byte) error {
	w.cancelWait()
	select {
	case <-w.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	return WithPrefix(w.client, w.keyPrefix).Set(ctx, leftKey(w.rank), reason)
}

// close closes the connection, so that the server records that this rank has ended.
func (w *endWatcher) close() error {
	w.cancelWait()
	err := w.client.Close()
	<-w.done
	return err
}
