package rendezvous

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// reportInterval is short, because the tests wait for reports.
const reportInterval = time.Millisecond

// At first, only rank 1 has started, and reports that rank 0 is absent. When rank 0 has started,
// rank 1 reports that rank 2 is absent.
func TestLateRanksAreReported(t *testing.T) {
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
	reported := make(chan []int)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	worlds[1].ReportAbsent = func(absent []int, waited time.Duration) time.Duration {
		isFirstCall := waited == 0 // absent is empty
		if !isFirstCall {
			select {
			case reported <- absent:
			case <-ctx.Done():
			}
		}

		return reportInterval
	}
	connectResults := make(chan error)
	connect := func(w World) {
		_, m, err := Connect(ctx, w)
		if err == nil {
			err = m.Close()
		}

		connectResults <- err
	}
	const reportCount = 2 // checks that reports are repeated
	go connect(worlds[1])
	for range reportCount {
		awaitReported(t, reported, 0)
	}

	go connect(worlds[0])
	for range reportCount {
		awaitReported(t, reported, 2)
	}

	cancel()
	for range 2 { // ranks 0 and 1
		if err := <-connectResults; !errors.Is(err, context.Canceled) {
			t.Errorf("Connect = %v, want context.Canceled", err)
		}
	}
}

// awaitReported waits for a report that lists only the rank want. It drops other reports.
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

// Rank 0 serves the store. While it waits for the other ranks to leave, it reports them.
func TestConnectedRanksAreReportedDuringLeave(t *testing.T) {
	ctx := testContext(t)
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
	reported := make(chan []int, 1)
	worlds[0].ReportConnected = func(connected []int, waited time.Duration) time.Duration {
		isFirstCall := waited == 0 // connected is empty
		if !isFirstCall {
			select {
			case reported <- connected:
			default: // The previous report is still unread.
			}
		}

		return reportInterval
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
