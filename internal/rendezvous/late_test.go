package rendezvous

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestLateRanksAreReported starts rank 1, which must report that rank 0 is absent. After rank 0 has
// started to serve the store, rank 1 must report that rank 2 is absent.
func TestLateRanksAreReported(t *testing.T) {
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
	reported := make(chan []int)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	worlds[1].ReportAbsent = func(absent []int, waited time.Duration) time.Duration {
		if waited > 0 {
			select {
			case reported <- absent:
			case <-ctx.Done():
			}
		}
		return time.Millisecond
	}
	errs := make(chan error)
	connect := func(w World) {
		_, m, err := Connect(ctx, w)
		if err == nil {
			err = m.Close()
		}
		errs <- err
	}
	go connect(worlds[1])
	for _, want := range []int{0, 2} {
		for range 2 {
			awaitReported(t, reported, want)
		}
		if want == 0 {
			go connect(worlds[0])
		}
	}
	cancel()
	for range 2 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	}
}

func awaitReported(t *testing.T, reported <-chan []int, want int) {
	t.Helper()
	for end := time.After(testTimeout); ; {
		select {
		case missing := <-reported:
			if slices.Equal(missing, []int{want}) {
				return
			}
		case <-end:
			t.Fatalf("rank %d was not reported", want)
		}
	}
}

func TestConnectedRanksAreReportedDuringLeave(t *testing.T) {
	ctx := testContext(t)
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
	reported := make(chan []int, 1)
	worlds[0].ReportConnected = func(absent []int, waited time.Duration) time.Duration {
		if waited > 0 {
			select {
			case reported <- absent:
			default: // The previous report is still unread.
			}
		}
		return time.Millisecond
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
