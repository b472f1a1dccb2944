package rendezvous

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"
)

// Member represents this rank in a world, the set of ranks that called Connect together. It is safe
// for concurrent use.
//
// Members coordinate by keys of the store. In a world of two ranks, rank 1 sets "joined/1", and
// rank 0 answers with "ready". When rank 1 leaves, it sets "left/1" to its reason. If rank 0 serves
// the store, it waits for "left/1" before it closes the store.
type Member struct {
	// These fields do not change after the Member has joined.
	world     World
	client    *Client     // accesses the store without keyPrefix
	service   *service    // the server of the store; nil unless this process serves it
	keyPrefix string      // prefix of this world's keys in the store
	store     *Client     // accesses the store with keyPrefix; nil before the prefix is known
	watcher   *endWatcher // nil if the server does not record which ranks have ended

	leaveOnce  sync.Once
	leaveError error // result of the first call of Leave
}

// readyKey is set by rank 0 to the list of absent ranks, when all ranks have joined or when it
// stops waiting for them.
const readyKey = "ready"

func joinedKey(rank int) string { return "joined/" + strconv.Itoa(rank) }

func leftKey(rank int) string { return "left/" + strconv.Itoa(rank) }

// closeTimeout limits how long Close waits for other ranks.
const closeTimeout = 30 * time.Second

// Close is Leave without a reason, with a timeout of 30 s.
func (m *Member) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return m.Leave(ctx, "")
}

// MaxReasonBytes is the maximum length of the reason that Leave sends to the other ranks.
const MaxReasonBytes = 64 << 10

// Leave leaves the world and closes the Member's client. The other ranks receive the reason, unless
// it has more than MaxReasonBytes. Later calls have no effect and return the result of the first.
//
// If this process serves the store, the last of its Members to leave waits until the other ranks
// have left or ctx is done, and then closes the store.
func (m *Member) Leave(ctx context.Context, reason string) error {
	if len(reason) > MaxReasonBytes {
		reason = ""
	}

	m.leaveOnce.Do(func() { m.leaveError = m.leaveWorld(ctx, reason) })
	return m.leaveError
}

func (m *Member) leaveWorld(ctx context.Context, reason string) error {
	isPrefixKnown := m.store != nil
	if isPrefixKnown && m.world.Size > 1 {
		// The other ranks receive the reason even if ctx is done.
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

// publishLeft sets this rank's leftKey. It prefers the watcher's connection, because rank 0 may no
// longer accept new ones.
func (m *Member) publishLeft(ctx context.Context, reason []byte) {
	if m.watcher != nil {
		err := m.watcher.announceLeave(ctx, reason)
		if err == nil {
			return
		}
	}

	_ = m.store.Set(ctx, leftKey(m.world.Rank), reason) // A lost store needs no announcement.
}

// serveUntilLeft closes this Member's client. For the last Member of the process, it first waits
// for the other ranks to leave, and finally closes the store.
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

// awaitOthers waits until the other ranks have set leaveKeys or disconnected, or until ctx is done.
// Before it returns, it calls cancel, which cancels ctx.
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

// awaitLeft waits until all leaveKeys are set, which have a list for each world that all ranks have
// joined. Without lists, awaitLeft returns false, because ranks that have not joined may disconnect
// without setting keys.
func (m *Member) awaitLeft(ctx context.Context, leaveKeys [][]string) (haveAllLeft bool) {
	for _, keys := range leaveKeys {
		err := m.client.Wait(ctx, keys...)
		if err != nil {
			return false
		}
	}

	return len(leaveKeys) > 0
}

// reportLateRanks calls report repeatedly on another goroutine, until ctx is done or stop is
// called. The arguments of report are the ranks that findLate returns, and the time since the first
// call, which has no ranks. report returns the time until its next call, or a negative time if
// there must be none. report may be nil.
func reportLateRanks(
	ctx context.Context, report func([]int, time.Duration) time.Duration,
	findLate func(context.Context) []int,
) (stop func()) {
	if report == nil {
		return func() {}
	}

	ctx, cancel := context.WithCancel(ctx)
	begin := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pause := report(nil, 0)
		for pause >= 0 && sleep(ctx, pause) {
			ranks := findLate(ctx)
			waited := time.Since(begin)
			if ctx.Err() != nil {
				return
			}

			pause = report(ranks, waited)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
