package rendezvous

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// A rank that waits for other ranks reports them repeatedly: in Connect, the ranks that are absent
// so far, and in Leave, those that are still connected. A report function gets these ranks and the
// time waited so far. It returns the time until the next report.

// reportEvery is the time between reports. It is short, because the tests wait for reports.
const reportEvery = time.Millisecond

// TestLateRanksAreReported starts rank 1, which must repeatedly report that rank 0 is absent. After
// rank 0 has started to serve the store, rank 1 must report rank 2 instead, which never starts.
func TestLateRanksAreReported(t *testing.T) {
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
	reported := make(chan []int)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	worlds[1].ReportAbsent = func(absent []int, waited time.Duration) time.Duration {
		hasWaited := waited > 0 // false in the first call
		if hasWaited {
			select {
			case reported <- absent:
			case <-ctx.Done():
			}
		}

		return reportEvery
	}
	errs := make(chan error)
	connect := func(w World) {
		_, m, err := Connect(ctx, w)
		if err == nil {
			err = m.Close()
		}

		errs <- err
	}
	const reportCount = 2 // because a report must be repeated
	go connect(worlds[1])
	for range reportCount {
		awaitReported(t, reported, 0)
	}

	go connect(worlds[0])
	for range reportCount {
		awaitReported(t, reported, 2)
	}

	cancel()
	for range 2 { // the calls of Connect on ranks 0 and 1
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("Connect = %v, want context.Canceled", err)
		}
	}
}

// awaitReported waits for a report of exactly one rank, want. It drops other reports before it.
func awaitReported(t *testing.T, reported <-chan []int, want int) {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case ranks := <-reported:
			if slices.Equal(ranks, []int{want}) {
				return
			}
		case <-timeout:
			t.Fatalf("rank %d was not reported", want)
		}
	}
}

// TestConnectedRanksAreReportedDuringLeave connects three ranks, and rank 1 leaves. Then rank 0
// leaves, which waits for rank 2, because rank 0 serves the store. It must report rank 2.
func TestConnectedRanksAreReportedDuringLeave(t *testing.T) {
	ctx := testContext(t)
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
	reported := make(chan []int, 1)
	worlds[0].ReportConnected = func(connected []int, waited time.Duration) time.Duration {
		hasWaited := waited > 0
		if hasWaited {
			select {
			case reported <- connected:
			default: // The previous report is still unread.
			}
		}

		return reportEvery
	}
	members := connectAll(ctx, t, worlds)
	if err := members[1].Close(); err != nil {
		t.Fatal(err)
	}

	leaveResult := make(chan error, 1)
	go func() { leaveResult <- members[0].Leave(ctx, "") }()
	awaitReported(t, reported, 2)
	if err := members[2].Close(); err != nil {
		t.Error(err)
	}

	if err := <-leaveResult; err != nil {
		t.Error(err)
	}
}
