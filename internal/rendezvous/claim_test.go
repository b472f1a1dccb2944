package rendezvous

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"strings"
	"testing"
)

// A process claims its rank in the store, so that a second process with the same rank is refused.
// It claims the rank by a greeting, which it sends as both values of a CompareSet. If another
// process has claimed the rank already, the error is a RankTakenError.

// claimForOtherProcess claims w.Rank in the name of a fictitious process. The claim lasts until the
// returned client is closed, at the latest at the end of the test.
func claimForOtherProcess(ctx context.Context, t *testing.T, w World, endpoint Endpoint) *Client {
	t.Helper()
	c, err := Dial(ctx, endpoint)
	if err != nil {
		t.Fatal(err)
	}

	closeLater(t, c)
	encoded, err := json.Marshal(greeting{
		Rank: w.Rank, Job: w.jobPrefix(), Process: "another", Description: "process 1 on another machine",
	})
	if err != nil {
		t.Fatal(err)
	}

	answer, err := c.CompareSet(ctx, greetingKey, encoded, encoded)
	if err != nil || string(answer) != greetingAnswer {
		t.Fatalf("CompareSet = %q, %v; want %q", answer, err, greetingAnswer)
	}

	return c
}

// isRankTaken reports whether an error is a RankTakenError.
func isRankTaken(err error) bool { return errors.As(err, new(*RankTakenError)) }

// TestDuplicateRankIsRefused calls Connect for rank 1 while another process has claimed that rank.
// Then both ranks connect. This would fail if the refused call had counted as a call of rank 1,
// because all ranks must make the same number of calls.
func TestDuplicateRankIsRefused(t *testing.T) {
	ctx := testContext(t)
	server, _ := serveOn(t, privateAddress(), "token")
	endpoint := Endpoint{Address: server.Address(), Token: "token"}
	worlds := worldsOf(2, Route{Kind: RouteJoin, Endpoint: endpoint})
	other := claimForOtherProcess(ctx, t, worlds[1], endpoint)
	_, _, err := Connect(ctx, worlds[1])
	var taken *RankTakenError
	if !errors.As(err, &taken) || taken.Rank != 1 {
		t.Fatalf("Connect of rank 1 = %v, want a RankTakenError about rank 1", err)
	}

	const advice = "from process 1 on another machine: it was started twice"
	if !strings.Contains(err.Error(), advice) {
		t.Fatalf("Connect of rank 1 = %v, want an error that contains %q", err, advice)
	}

	if err := other.Close(); err != nil {
		t.Fatal(err)
	}

	for _, m := range connectAll(ctx, t, worlds) {
		closeLater(t, m)
	}
}

// TestDuplicateRankZeroIsRefused calls Connect for rank 0, which would serve the store, while
// another process serves it and has claimed rank 0.
func TestDuplicateRankZeroIsRefused(t *testing.T) {
	ctx := testContext(t)
	server, _ := serveOn(t, privateAddress(), "")
	endpoint := Endpoint{Address: server.Address()}
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: endpoint})
	claimForOtherProcess(ctx, t, worlds[0], endpoint)
	_, _, err := Connect(ctx, worlds[0])
	if !isRankTaken(err) {
		t.Fatalf("Connect of rank 0 = %v, want a RankTakenError", err)
	}
}

// TestDuplicateRankZeroIsRefusedAfterRetry calls joinService, by which rank 0 serves the store,
// while another process serves at the same address. As long as that process has not claimed rank
// 0, joinService must retry and log a warning. After the claim, it must fail.
func TestDuplicateRankZeroIsRefusedAfterRetry(t *testing.T) {
	ctx := testContext(t)
	server, _ := serveOn(t, privateAddress(), "")
	endpoint := Endpoint{Address: server.Address()}
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: endpoint})
	warnings := captureWarnings(t)
	joinResult := make(chan error, 1)
	go func() {
		_, err := joinService(ctx, endpoint, &worlds[0])
		joinResult <- err
	}()
	select {
	case text := <-warnings:
		if !strings.Contains(text, "the address of the store is in use") {
			t.Errorf("unexpected warning: %s", text)
		}
	case <-ctx.Done():
		t.Fatal("no warning was logged")
	}

	claimForOtherProcess(ctx, t, worlds[0], endpoint)
	err := <-joinResult
	if !isRankTaken(err) {
		t.Errorf("joinService = %v after the claim, want a RankTakenError", err)
	}
}

// captureWarnings sends the messages of the default logger to the returned channel, until the end
// of the test.
func captureWarnings(t *testing.T) <-chan string {
	t.Helper()
	warnings := make(warningHandler, 1)
	oldLogger := slog.Default()
	// SetDefault also redirects package log, and restoring the default logger does not undo that.
	oldOutput := log.Writer()
	oldFlags := log.Flags()
	slog.SetDefault(slog.New(warnings))
	t.Cleanup(func() {
		slog.SetDefault(oldLogger)
		log.SetOutput(oldOutput)
		log.SetFlags(oldFlags)
	})
	return warnings
}

// warningHandler is a slog.Handler that sends messages to the channel, or drops them if it is
// full.
type warningHandler chan string

func (w warningHandler) Handle(_ context.Context, r slog.Record) error {
	select {
	case w <- r.Message:
	default:
	}

	return nil
}

func (warningHandler) Enabled(context.Context, slog.Level) bool { return true }
func (w warningHandler) WithAttrs([]slog.Attr) slog.Handler     { return w }
func (w warningHandler) WithGroup(string) slog.Handler          { return w }

// TestProbeClaimsNoRank sends a probe, which asks whether a rank is claimed. Another process must
// then be able to claim the rank, and a second probe must report that claim.
func TestProbeClaimsNoRank(t *testing.T) {
	ctx := testContext(t)
	server, c := serveOn(t, privateAddress(), "")
	endpoint := Endpoint{Address: server.Address()}
	w := worldsOf(2, Route{Kind: RouteServe, Endpoint: endpoint})[0]
	_, err := sendGreeting(ctx, c, w.probeGreeting())
	if err != nil {
		t.Fatal(err)
	}

	claimForOtherProcess(ctx, t, w, endpoint)
	_, err = sendGreeting(ctx, c, w.probeGreeting())
	if !isRankTaken(err) {
		t.Errorf("the second probe = %v, want a RankTakenError", err)
	}
}

// TestSizeKeyHasJobPrefix compares two texts for the same attempt to run a job. The size key
// "symmem/run/2/size of 1" is the key under which rank 1 stores the size of its world. It must
// start like the job prefix, which is "symmem/run/2/4" in a world of size 4. But it must not
// contain the size, so that ranks with different sizes find each other's keys.
func TestSizeKeyHasJobPrefix(t *testing.T) {
	for _, runID := range []string{"", "none", "run"} {
		const sizeKeyEnd = "size of 1"
		w := World{RunID: runID, Restart: 2, Size: 4}
		sizeKey := w.sizeKey(1)
		attempt, hasEnd := strings.CutSuffix(sizeKey, sizeKeyEnd)
		if !hasEnd {
			t.Errorf("run ID %q: got size key %q, want suffix %q", runID, sizeKey, sizeKeyEnd)
		}

		wantJob := attempt + "4"
		if job := w.jobPrefix(); job != wantJob {
			t.Errorf("run ID %q: got job prefix %q, want %q", runID, job, wantJob)
		}
	}
}

// TestDifferentWorldSizesAreReported starts rank 0 of 2 and rank 1 of 3. Neither can connect. When
// the context is canceled, the error of rank 0 must mention both sizes.
func TestDifferentWorldSizesAreReported(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
	world0 := worldsOf(2, route)[0]
	world1 := worldsOf(3, route)[1]
	result0 := make(chan error, 1)
	result1 := make(chan error, 1)
	connect := func(w World, result chan<- error) {
		_, _, err := Connect(ctx, w)
		result <- err
	}
	go connect(world0, result0)
	go connect(world1, result1)
	awaitKeys(ctx, t, route.Endpoint, world1.sizeKey(1), world0.sizeKey(0))
	cancel()
	if err := <-result1; err == nil {
		t.Error("rank 1 of 3 connected without the other ranks")
	}

	const want = "WORLD_SIZE is 3 on rank 1, but 2 on this rank"
	if err := <-result0; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Connect of rank 0 = %v, want an error that contains %q", err, want)
	}
}

// awaitKeys waits until all keys are set in the store at an endpoint.
func awaitKeys(ctx context.Context, t *testing.T, endpoint Endpoint, keys ...string) {
	t.Helper()
	c, err := Dial(ctx, endpoint)
	if err != nil {
		t.Fatal(err)
	}

	if err := c.Wait(ctx, keys...); err != nil {
		t.Error(err)
	}

	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
