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

// claimForOtherProcess claims w.Rank in the name of a fictitious process. The claim lasts until the
// returned client is closed, at the latest at the end of the test. A process claims its rank by a
// greeting, which it sends as both values of a CompareSet.
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

// TestDuplicateRankIsRefused calls Connect for rank 1 while another process has claimed that rank.
// Then both ranks connect, which would fail if the refused call had incremented rank 1's call
// counter.
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
	if _, _, err := Connect(ctx, worlds[0]); !errors.As(err, new(*RankTakenError)) {
		t.Fatalf("Connect of rank 0 = %v, want a RankTakenError", err)
	}
}

// TestDuplicateRankZeroIsRefusedAfterRetry serves a store in which rank 0 is not claimed yet, and
// starts another rank 0, which cannot serve the same address. joinService must log a warning and
// retry. After the first process has claimed rank 0, joinService must fail.
func TestDuplicateRankZeroIsRefusedAfterRetry(t *testing.T) {
	ctx := testContext(t)
	server, _ := serveOn(t, privateAddress(), "")
	endpoint := Endpoint{Address: server.Address()}
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: endpoint})
	warnings := make(warningHandler, 1)
	// SetDefault also redirects package log, and restoring the default logger does not undo that.
	oldLogger, output, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(warnings))
	defer func() {
		slog.SetDefault(oldLogger)
		log.SetOutput(output)
		log.SetFlags(flags)
	}()
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
	if err := <-joinResult; !errors.As(err, new(*RankTakenError)) {
		t.Errorf("joinService = %v after the claim, want a RankTakenError", err)
	}
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
	if _, err := sendGreeting(ctx, c, w.probeGreeting()); err != nil {
		t.Fatal(err)
	}

	claimForOtherProcess(ctx, t, w, endpoint)
	if _, err := sendGreeting(ctx, c, w.probeGreeting()); !errors.As(err, new(*RankTakenError)) {
		t.Errorf("the second probe = %v, want a RankTakenError", err)
	}
}

// TestSizeKeyHasJobPrefix checks that the size key and the job prefix start with the same run ID
// and attempt. Unlike the job prefix, the size key must not contain the size.
func TestSizeKeyHasJobPrefix(t *testing.T) {
	for _, runID := range []string{"", "none", "run"} {
		w := World{RunID: runID, Restart: 2, Size: 4}
		key, job := w.sizeKey(1), w.jobPrefix()
		attempt, isSizeKey := strings.CutSuffix(key, "size of 1")
		if !isSizeKey {
			t.Errorf("run ID %q: got size key %q, want suffix %q", runID, key, "size of 1")
		}

		if want := attempt + "4"; job != want { // The job prefix ends with the size.
			t.Errorf("run ID %q: got job prefix %q, want %q", runID, job, want)
		}
	}
}

// TestDifferentWorldSizesAreReported starts rank 0 of 2 and rank 1 of 3. Neither can connect. When
// the context is canceled, the error of rank 0 must mention both sizes.
func TestDifferentWorldSizesAreReported(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
	small, large := worldsOf(2, route), worldsOf(3, route)
	results := [2]chan error{make(chan error, 1), make(chan error, 1)} // by rank
	for rank, w := range []World{small[0], large[1]} {
		go func() {
			_, _, err := Connect(ctx, w)
			results[rank] <- err
		}()
	}

	// Wait until both ranks have stored their sizes.
	c, err := Dial(ctx, route.Endpoint)
	if err != nil {
		t.Fatal(err)
	}

	if err := c.Wait(ctx, large[1].sizeKey(1), small[0].sizeKey(0)); err != nil {
		t.Error(err)
	}

	if err := c.Close(); err != nil {
		t.Error(err)
	}

	cancel()
	if err := <-results[1]; err == nil {
		t.Error("rank 1 of 3 connected without the other ranks")
	}

	const want = "WORLD_SIZE is 3 on rank 1, but 2 on this rank"
	if err := <-results[0]; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Connect of rank 0 = %v, want an error that contains %q", err, want)
	}
}
