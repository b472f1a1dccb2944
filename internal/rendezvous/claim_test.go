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

// claimForOtherProcess claims w.Rank in the name of another process, by sending a greeting to the
// store. The claim lasts until the returned client is closed.
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

func isRankTaken(err error) bool { return errors.As(err, new(*RankTakenError)) }

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

	// The refused call of Connect does not prevent the ranks from connecting now.
	for _, member := range connectAll(ctx, t, worlds) {
		closeLater(t, member)
	}
}

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

// While another process uses the address of the store, joinService retries. When that process
// claims rank 0, joinService fails.
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

// captureWarnings redirects the default logger to the returned channel.
func captureWarnings(t *testing.T) <-chan string {
	t.Helper()
	warnings := make(warningHandler, 1)
	oldLogger := slog.Default()
	// SetDefault also redirects package log. Restoring the old logger does not undo this.
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

// warningHandler sends log messages to a channel. It drops messages while the channel is full.
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

// A probe asks whether a rank is claimed, without claiming it.
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

// The job prefix ends with the number of ranks. The size key does not contain this number, so that
// ranks with different numbers find each other's keys.
func TestSizeKeyHasJobPrefix(t *testing.T) {
	for runID, wantPrefix := range map[string]string{
		"":     "symmem/none/2/",
		"none": "symmem/none/2/",
		"run":  "symmem/run/2/",
	} {
		w := World{RunID: runID, Restart: 2, Size: 4}
		if got, want := w.sizeKey(1), wantPrefix+"size of 1"; got != want {
			t.Errorf("run ID %q: got size key %q, want %q", runID, got, want)
		}

		if got, want := w.jobPrefix(), wantPrefix+"4"; got != want {
			t.Errorf("run ID %q: got job prefix %q, want %q", runID, got, want)
		}
	}
}

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
	awaitKeys(ctx, t, route.Endpoint, world0.sizeKey(0), world1.sizeKey(1))
	cancel() // Neither rank can connect.
	if err := <-result1; err == nil {
		t.Error("rank 1 of 3 connected without the other ranks")
	}

	const want = "WORLD_SIZE is 3 on rank 1, but 2 on this rank"
	if err := <-result0; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Connect of rank 0 = %v, want an error that contains %q", err, want)
	}
}

// awaitKeys waits until the keys are set in the store at an endpoint.
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
