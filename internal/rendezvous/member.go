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
// then rank 0 sets "ready". When rank 1 leaves, it sets "left/1" to its reason. If rank 0 serves
// the store, it waits for "left/1" before it closes the store.
type Member struct {
	// These fields do not change after Connect.
	world       World
	jobClient   *Client
	service     *service    // nil unless this process serves the store
	keyPrefix   string      // prefix of this world's keys in the store
	worldClient *Client     // jobClient with keyPrefix; nil before join has chosen the prefix
	watcher     *endWatcher // nil if the server does not record which ranks have ended

	leaveOnce  sync.Once
	leaveError error // result of the first call of Leave
}

// Rank 0 sets readyKey to a list of absent ranks. It is empty if all have joined.
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

// Leave leaves the world and closes the Member's client. The other ranks receive the reason, or ""
// if it is longer than MaxReasonBytes. Later calls have no effect and return the result of the
// first.
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
	if m.worldClient != nil && m.world.Size > 1 {
		// ctx may be done.
		leaveCtx, cancel := context.WithTimeout(context.Background(), lateRequestTimeout)
		defer cancel()
		m.announceLeave(leaveCtx, []byte(reason))
	}

	var watcherErr error
	if m.watcher != nil {
		watcherErr = m.watcher.close()
	}

	if m.service != nil {
		serviceErr := m.leaveService(ctx)
		return errors.Join(watcherErr, serviceErr)
	}

	closeErr := m.jobClient.Close()
	return errors.Join(watcherErr, closeErr)
}

// announceLeave sets this rank's leftKey, if possible over the watcher's connection, because rank 0
// may no longer accept new ones.
func (m *Member) announceLeave(ctx context.Context, reason []byte) {
	if m.watcher != nil {
		err := m.watcher.announceLeave(ctx, reason)
		if err == nil {
			return
		}
	}

	_ = m.worldClient.Set(ctx, leftKey(m.world.Rank), reason)
}

// leaveService closes this Member's client. The last Member of the process then closes the store,
// after the other ranks have left.
func (m *Member) leaveService(ctx context.Context) error {
	isLast, leaveKeys := m.service.removeMember()
	if !isLast {
		return m.jobClient.Close()
	}

	server := m.service.server
	reportCtx, cancelReports := context.WithCancel(ctx)
	findConnected := func(context.Context) []int { return server.connectedRanks(m.keyPrefix) }
	stopReports := reportRanks(reportCtx, m.world.ReportConnected, findConnected)
	defer stopReports()
	m.awaitOthers(ctx, leaveKeys)
	cancelReports() // without waiting for a call in progress
	server.announceClosing()
	clientErr := m.jobClient.Close()
	serverErr := server.Close()
	return errors.Join(clientErr, serverErr)
}

// awaitOthers waits until the other ranks have set leaveKeys or disconnected, or until ctx is done.
func (m *Member) awaitOthers(ctx context.Context, leaveKeys [][]string) {
	ctx, cancel := context.WithCancel(ctx) // The first wait to end cancels the other.
	var waiter sync.WaitGroup
	waiter.Go(func() {
		haveAllLeft := m.awaitLeft(ctx, leaveKeys)
		if haveAllLeft {
			cancel()
		}
	})
	_ = m.service.server.Drain(ctx) // returns when all have disconnected
	cancel()
	waiter.Wait()
}

// awaitLeft waits until all leaveKeys are set. Without leaveKeys, it returns false, because ranks
// that have not joined set no keys.
func (m *Member) awaitLeft(ctx context.Context, leaveKeys [][]string) (haveAllLeft bool) {
	for _, keys := range leaveKeys {
		err := m.jobClient.Wait(ctx, keys...)
		if err != nil {
			return false
		}
	}

	return len(leaveKeys) > 0
}

// reportRanks calls report repeatedly on another goroutine until ctx is done or stop is called. The
// arguments are the ranks that findRanks returns and the time since the first call, which has no
// ranks. report returns the time until its next call, or a negative time to end the calls.
func reportRanks(
	ctx context.Context, report func([]int, time.Duration) time.Duration,
	findRanks func(context.Context) []int,
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
			ranks := findRanks(ctx)
			if ctx.Err() != nil {
				return
			}

			pause = report(ranks, time.Since(begin))
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
