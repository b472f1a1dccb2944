package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// maxReportTime bounds the time from the end of a rank until other ranks report it. Waits that miss
// the end last until testTimeout.
const maxReportTime = testTimeout / 2

// closeLinks closes all connections of a member, as the kernel does when a process is killed.
func closeLinks(m *Member) error {
	m.watcher.cancelWait()
	err := errors.Join(m.watcher.client.Close(), m.jobClient.Close())
	if m.service != nil {
		services.mu.Lock()
		delete(services.byAddress, m.service.endpoint.Address)
		services.mu.Unlock()
		err = errors.Join(err, m.service.server.Close())
	}

	<-m.watcher.done
	return err
}

// routesOf returns routes to stores of this package, keyed by the process that serves the store.
func routesOf(t *testing.T) map[string]Route {
	t.Helper()
	server, _ := serveOn(t, privateAddress(), "token")
	return map[string]Route{
		"a launcher": {
			Kind: RouteJoin, Endpoint: Endpoint{Address: server.Address(), Token: "token"},
		},
		"rank 0": {Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}},
	}
}

func connectAll(ctx context.Context, t *testing.T, worlds []World) []*Member {
	t.Helper()
	members := make([]*Member, len(worlds))
	forEachRank(t, worlds, func(w World) (err error) {
		_, members[w.Rank], err = Connect(ctx, w)
		return err
	})
	if t.Failed() {
		t.FailNow()
	}

	return members
}

// TestEndOfRankCancelsDependentWaits ends a rank. Contexts returned by Guard must be canceled
// if they need that rank or if it served the store. Other contexts must not be canceled.
func TestEndOfRankCancelsDependentWaits(t *testing.T) {
	for name, route := range routesOf(t) {
		for _, victim := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s serves, rank %d ends", name, victim), func(t *testing.T) {
				ctx := testContext(t)
				members := connectAll(ctx, t, worldsOf(4, route))
				survivors := slices.Delete(slices.Clone(members), victim, victim+1)
				began := time.Now()
				if err := closeLinks(members[victim]); err != nil {
					t.Error(err)
				}

				for _, m := range survivors {
					checkEnded(ctx, t, m, []int{2, victim, 3}, victim)
					if victim == 0 && route.Kind == RouteServe {
						checkEnded(ctx, t, m, []int{1, 2, 3}, victim)
					}
				}

				if took := time.Since(began); took > maxReportTime {
					t.Errorf("the end was reported after %v, want at most %v", took, maxReportTime)
				}

				if victim != 0 {
					unaffected, stop := survivors[0].Guard(ctx, []int{0, 2, 3})
					if err := survivors[0].worldClient.Set(unaffected, "key", nil); err != nil {
						t.Error(err)
					}

					stop()
				}

				for _, m := range slices.Backward(survivors) {
					if err := m.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

func checkEnded(ctx context.Context, t *testing.T, m *Member, ranks []int, victim int) {
	t.Helper()
	guarded, stop := m.Guard(ctx, ranks)
	defer stop()
	select {
	case <-guarded.Done():
	case <-time.After(testTimeout):
	}

	var e *EndedError
	if !errors.As(context.Cause(guarded), &e) || e.Rank != victim || e.HasLeft {
		t.Errorf("rank %d: cause of the context for ranks %v = %v, want the end of rank %d",
			m.world.Rank, ranks, context.Cause(guarded), victim)
	}

	atLeastOne := func(known []*EndedError) bool { return len(known) > 0 }
	ended := m.AwaitEnded(ctx, ranks, atLeastOne)
	if len(ended) != 1 || ended[0].Rank != victim {
		t.Errorf("rank %d: AwaitEnded(%v) = %v, want the end of rank %d",
			m.world.Rank, ranks, ended, victim)
	}
}

// TestRankThatEndsDuringConnectIsReported ends one of ranks 0, 1 and 2 after all three have joined,
// while they wait for rank 3, which never joins.
func TestRankThatEndsDuringConnectIsReported(t *testing.T) {
	for name, route := range routesOf(t) {
		for _, victim := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s serves, rank %d ends", name, victim), func(t *testing.T) {
				ctx := testContext(t)
				worlds := worldsOf(4, route)
				errs := make(chan error)
				others := slices.Delete(slices.Clone(worlds[:3]), victim, victim+1)
				for _, w := range others {
					go func() {
						_, _, err := Connect(ctx, w)
						errs <- err
					}()
				}

				m := &Member{world: worlds[victim]}
				if err := m.openStore(ctx); err != nil {
					t.Fatal(err)
				}

				if err := m.join(ctx); err != nil {
					t.Fatal(err)
				}

				for _, w := range others {
					if err := m.worldClient.Wait(ctx, joinedKey(w.Rank)); err != nil {
						t.Fatal(err)
					}
				}

				began := time.Now()
				if err := closeLinks(m); err != nil {
					t.Error(err)
				}

				for range others {
					err := <-errs
					var e *EndedError
					if !errors.As(err, &e) || e.Rank != victim {
						t.Errorf("got %v, want the end of rank %d", err, victim)
					}
				}

				if took := time.Since(began); took > maxReportTime {
					t.Errorf("the end was reported after %v, want at most %v", took, maxReportTime)
				}
			})
		}
	}
}

// TestLostStoreIsExplained loses the store during a request of rank 1. The error must be about rank
// 0 if that was killed, but not if it left.
func TestLostStoreIsExplained(t *testing.T) {
	for name, end := range map[string]func(*Member) error{
		"killed": closeLinks,
		"left": func(m *Member) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // do not wait for rank 1
			return m.Leave(ctx, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
			members := connectAll(ctx, t, worldsOf(2, route))
			if err := end(members[0]); err != nil {
				t.Error(err)
			}

			err := members[1].worldClient.Set(ctx, "key", nil)
			if !errors.Is(err, ErrLost) {
				t.Fatalf("Set without a store = %v, want ErrLost", err)
			}

			explained := members[1].explainError(err)
			var e *EndedError
			if isEnd := errors.As(explained, &e) && e.Rank == 0; isEnd != (name == "killed") {
				t.Errorf("explainError(%v) = %v with rank 0 %s", err, explained, name)
			}

			if err := closeLinks(members[1]); err != nil {
				t.Error(err)
			}
		})
	}
}

// In TestTimeoutDoesNotCountAsEnd, rank 1 times out before rank 0 while both wait for rank 2.
// Rank 0 must nevertheless report only rank 2 as absent.
func TestTimeoutDoesNotCountAsEnd(t *testing.T) {
	for name, route := range routesOf(t) {
		t.Run(name+" serves", func(t *testing.T) {
			worlds := worldsOf(3, route)
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			firstCtx, endFirst := context.WithCancel(ctx)
			errs := make(chan error)
			for rank, ctx := range []context.Context{ctx, firstCtx} {
				go func() {
					_, _, err := Connect(ctx, worlds[rank])
					errs <- err
				}()
			}

			probe, err := Dial(ctx, route.Endpoint)
			if err != nil {
				t.Fatal(err)
			}

			base := "symmem/none/0/3/1/"
			if err := probe.Wait(ctx, base+joinedKey(0), base+joinedKey(1)); err != nil {
				t.Fatal(err)
			}

			endFirst()
			checkAbsent(t, <-errs, 2)
			// Wait until the store has recorded the end of rank 1.
			if err := probe.Wait(ctx, endKey(0)); err != nil {
				t.Fatal(err)
			}

			if err := probe.Close(); err != nil {
				t.Error(err)
			}

			cancel()
			checkAbsent(t, <-errs, 2)
		})
	}
}

func checkAbsent(t *testing.T, err error, ranks ...int) {
	t.Helper()
	var absent *AbsentError
	if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, ranks) ||
		errors.As(err, new(*EndedError)) {
		t.Errorf("got %v, want an AbsentError for ranks %v", err, ranks)
	}
}

// TestLeaveReturnsAtDeadline calls Leave on rank 0, which serves the store, while rank 1 keeps
// its connections open, as a stopped process does.
func TestLeaveReturnsAtDeadline(t *testing.T) {
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
	members := connectAll(testContext(t), t, worldsOf(2, route))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := members[0].Leave(ctx, ""); err != nil {
		t.Error(err)
	}

	if took := time.Since(began); took > maxReportTime {
		t.Errorf("Leave returned after %v, want at most %v", took, maxReportTime)
	}

	if err := members[1].Close(); err != nil {
		t.Error(err)
	}
}

// TestStoreThatDoesNotRecordEndsIsSupported sends a greeting that the server ignores, as torchrun's
// store does, because it is too long.
func TestStoreThatDoesNotRecordEndsIsSupported(t *testing.T) {
	server, client := serveOn(t, privateAddress(), "")
	answer, err := client.CompareSet(testContext(t), "key", []byte("value"), []byte("value"))
	if err != nil || string(answer) == greetingAnswer {
		t.Fatalf("CompareSet = %q, %v; want an answer other than greetingAnswer", answer, err)
	}

	m := &Member{world: worldsOf(2, Route{Kind: RouteJoin})[1], jobClient: client, keyPrefix: "base"}
	m.keyPrefix = strings.Repeat("x", maxGreetingBytes)
	w, err := startEndWatcher(testContext(t), m, newClient(client.addr, client.dial))
	if w != nil || err != nil {
		t.Errorf("startEndWatcher = %v, %v; want nil, because the server does not support greetings",
			w, err)
	}

	guarded, stop := m.Guard(testContext(t), []int{0, 1})
	defer stop()
	if guarded.Err() != nil || len(m.AwaitEnded(testContext(t), []int{0}, nil)) != 0 {
		t.Error("a rank was reported as ended, want none")
	}

	_ = server
}

func TestReasonForLeavingIsReported(t *testing.T) {
	for name, route := range routesOf(t) {
		t.Run(name+" serves", func(t *testing.T) {
			ctx := testContext(t)
			members := connectAll(ctx, t, worldsOf(3, route))
			reasons := map[int]string{1: "out of memory", 2: strings.Repeat("x", MaxReasonBytes+1)}
			for rank, why := range reasons {
				if err := members[rank].Leave(ctx, why); err != nil {
					t.Error(err)
				}
			}

			reasons[2] = "" // Leave drops the reason because it is too long.
			ended := members[0].AwaitEnded(ctx, []int{1, 2}, func(known []*EndedError) bool {
				return len(known) == len(reasons)
			})
			for _, e := range ended {
				if !e.HasLeft || e.Reason != reasons[e.Rank] {
					t.Errorf("rank %d: got %+v, want reason %q", e.Rank, e, reasons[e.Rank])
				}
			}

			if err := members[0].Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReasonIsSentOverWatchConnection closes all of rank 1's connections except that of its
// watch. Rank 0 is leaving and accepts no new connections. Rank 2 must still receive rank 1's
// reason.
func TestReasonIsSentOverWatchConnection(t *testing.T) {
	ctx := testContext(t)
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
	members := connectAll(ctx, t, worldsOf(3, route))
	left := make(chan error)
	go func() { left <- members[0].Close() }()
	for network, addr, _ := splitAddress(route.Endpoint.Address); ; {
		probe, err := net.Dial(network, addr)
		if err != nil {
			break // Rank 0 has stopped listening.
		}

		if err := probe.Close(); err != nil {
			t.Error(err)
		}
	}

	members[1].jobClient.loseLinks()
	if err := members[1].Leave(ctx, "out of memory"); err != nil {
		t.Error(err)
	}

	ended := members[2].AwaitEnded(ctx, []int{1}, func(known []*EndedError) bool {
		return len(known) > 0
	})
	if len(ended) != 1 || !ended[0].HasLeft || ended[0].Reason != "out of memory" {
		t.Errorf("Ended on rank 2 = %+v; want rank 1 with reason out of memory", ended)
	}

	if err := errors.Join(members[2].Close(), <-left); err != nil {
		t.Error(err)
	}
}

func (c *Client) loseLinks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.links {
		l.conn.Close()
	}

	c.links, c.idleLinks = map[*link]bool{}, nil
}
