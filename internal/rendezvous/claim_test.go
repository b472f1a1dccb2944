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

// claimForOtherProcess claims w.Rank in the name of a fictitious process until the returned client
// is closed.
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
	if string(answer) != greetingAnswer {
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
	if !errors.As(err, &taken) || taken.Rank != 1 ||
		!strings.Contains(err.Error(), "from process 1 on another machine: it was started twice") {
		t.Fatalf("Connect of rank 1 = %v, want a RankTakenError about rank 1", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for _, m := range connectAll(ctx, t, worlds) {
		closeLater(t, m)
	}
}

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

// TestDuplicateRankZeroIsRefusedAfterRetry serves a store and starts another rank 0 before a
// process claims that rank. joinService must log a warning and retry, and fail after the claim.
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
	for _, run := range []string{"", "none", "run"} {
		w := World{RunID: run, Restart: 2, Size: 4}
		key, job := w.sizeKey(1), w.jobPrefix()
		attempt, isSizeKey := strings.CutSuffix(key, "size of 1")
		if !isSizeKey || job != attempt+"4" {
			t.Errorf("run ID %q: size key %q and job prefix %q have different attempts", run, key, job)
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
	results := [2]chan error{make(chan error, 1), make(chan error, 1)}
	for i, w := range []World{small[0], large[1]} {
		go func() {
			_, _, err := Connect(ctx, w)
			results[i] <- err
		}()
	}
	c, err := Dial(ctx, route.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Wait(ctx, large[1].sizeKey(1), small[0].sizeKey(0))
	if err = errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-results[1]; err == nil {
		t.Error("rank 1 of 3 connected without the other ranks")
	}
	if err := <-results[0]; err == nil || !strings.Contains(err.Error(),
		"WORLD_SIZE is 3 on rank 1, but 2 on this rank") {
		t.Errorf("Connect of rank 0 = %v, want an error that mentions both sizes", err)
	}
}
