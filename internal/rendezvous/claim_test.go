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

// otherProcess connects to a store as a rank of a world on behalf of another process.
func otherProcess(ctx context.Context, t *testing.T, w World, at Endpoint) *Client {
	t.Helper()
	c, err := Dial(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, c)
	words, err := json.Marshal(greeting{
		Rank: w.Rank, Job: w.job(), Process: "another", Place: "process 1 on another machine",
	})
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := c.CompareSet(ctx, greetKey, words, words); string(answer) != greetAnswer {
		t.Fatalf("the answer is %q, %v, want %q", answer, err, greetAnswer)
	}
	return c
}

// TestRankStartedTwiceIsRefused also checks that the refused call does not count: once the other
// process has ended, the ranks connect.
func TestRankStartedTwiceIsRefused(t *testing.T) {
	ctx := testContext(t)
	server, _ := serveOn(t, privateName(), "token")
	at := Endpoint{Address: server.Address(), Token: "token"}
	worlds := worldsOf(2, Route{Kind: RouteJoin, Endpoint: at})
	other := otherProcess(ctx, t, worlds[1], at)
	_, _, err := Connect(ctx, worlds[1])
	var taken *TakenError
	if !errors.As(err, &taken) || taken.Rank != 1 ||
		!strings.Contains(err.Error(), "from process 1 on another machine: it was started twice") {
		t.Fatalf("got %v, want a TakenError about rank 1", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for _, m := range connectAll(ctx, t, worlds) {
		closeLater(t, m)
	}
}

// TestSecondRankZeroIsRefused checks that a second rank 0 at the same address fails at once.
func TestSecondRankZeroIsRefused(t *testing.T) {
	ctx := testContext(t)
	server, _ := serveOn(t, privateName(), "")
	at := Endpoint{Address: server.Address()}
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: at})
	otherProcess(ctx, t, worlds[0], at)
	if _, _, err := Connect(ctx, worlds[0]); !errors.As(err, new(*TakenError)) {
		t.Fatalf("got %v, want a TakenError", err)
	}
}

// TestOneOfTwoConcurrentRankZerosIsRefused starts two ranks 0. The first serves the store, but has
// not yet claimed its rank when the second checks for the first time.
func TestOneOfTwoConcurrentRankZerosIsRefused(t *testing.T) {
	ctx := testContext(t)
	server, _ := serveOn(t, privateName(), "")
	at := Endpoint{Address: server.Address()}
	worlds := worldsOf(2, Route{Kind: RouteServe, Endpoint: at})
	logged := make(warnings, 1)
	// SetDefault also redirects package log and does not undo that.
	before, output, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(logged))
	defer func() {
		slog.SetDefault(before)
		log.SetOutput(output)
		log.SetFlags(flags)
	}()
	refused := make(chan error, 1)
	go func() {
		_, err := serve(ctx, at, &worlds[0])
		refused <- err
	}()
	select {
	case text := <-logged:
		if !strings.Contains(text, "the address of the store is taken") {
			t.Errorf("unexpected warning: %s", text)
		}
	case <-ctx.Done():
		t.Fatal("no warning was logged")
	}
	otherProcess(ctx, t, worlds[0], at)
	if err := <-refused; !errors.As(err, new(*TakenError)) {
		t.Errorf("got %v, want a TakenError", err)
	}
}

// warnings is a slog.Handler that sends the first message logged.
type warnings chan string

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	select {
	case w <- r.Message:
	default:
	}
	return nil
}

func (warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler     { return w }
func (w warnings) WithGroup(string) slog.Handler          { return w }

// TestProbeClaimsNoRank probes for a rank on a connection that stays open, and claims it on
// another.
func TestProbeClaimsNoRank(t *testing.T) {
	ctx := testContext(t)
	server, c := serveOn(t, privateName(), "")
	at := Endpoint{Address: server.Address()}
	w := worldsOf(2, Route{Kind: RouteServe, Endpoint: at})[0]
	if _, err := greet(ctx, c, w.probe()); err != nil {
		t.Fatal(err)
	}
	otherProcess(ctx, t, w, at)
	if _, err := greet(ctx, c, w.probe()); !errors.As(err, new(*TakenError)) {
		t.Errorf("got %v, want a TakenError", err)
	}
}

// TestKeysOfJobShareItsPrefix also tests a job without a name.
func TestKeysOfJobShareItsPrefix(t *testing.T) {
	for _, run := range []string{"", "none", "run"} {
		w := World{RunID: run, Restart: 2, Size: 4}
		key, job := w.sizeKey(1), w.job()
		if prefix, ok := strings.CutSuffix(key, "size of 1"); !ok || job != prefix+"4" {
			t.Errorf("run id %q: size key %q and job prefix %q have different prefixes", run, key, job)
		}
	}
}

// TestDifferentWorldSizesAreReported connects rank 0 of a world of 2 and rank 1 of a world of 3.
func TestDifferentWorldSizesAreReported(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateName()}}
	small, large := worldsOf(2, route), worldsOf(3, route)
	failed := [2]chan error{make(chan error, 1), make(chan error, 1)}
	for i, w := range []World{small[0], large[1]} {
		go func() {
			_, _, err := Connect(ctx, w)
			failed[i] <- err
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
	if err := <-failed[1]; err == nil {
		t.Error("rank 1 of 3 connected without the other ranks")
	}
	if err := <-failed[0]; err == nil || !strings.Contains(err.Error(),
		"WORLD_SIZE is 3 on rank 1, but 2 on this rank") {
		t.Errorf("got %v, want an error with both sizes", err)
	}
}
