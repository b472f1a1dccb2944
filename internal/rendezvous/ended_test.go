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

// prompt limits the time until an end is reported.
const prompt = 3 * time.Second

// die closes the connections of a member, as the kernel does when its process is killed.
func die(m *Member) error {
	m.watch.cancel()
	err := errors.Join(m.watch.client.Close(), m.client.Close())
	if m.service != nil {
		services.mu.Lock()
		delete(services.at, m.service.at.Address)
		services.mu.Unlock()
		err = errors.Join(err, m.service.server.Close())
	}
	<-m.watch.done
	return err
}

// routesOf returns routes to a store of this package, by the process that serves it.
func routesOf(t *testing.T) map[string]Route {
	t.Helper()
	server, _ := serveOn(t, privateName(), "token")
	return map[string]Route{
		"a launcher": {
			Kind: RouteJoin, Endpoint: Endpoint{Address: server.Address(), Token: "token"},
		},
		"rank 0": {Kind: RouteServe, Endpoint: Endpoint{Address: privateName()}},
	}
}

// connectAll connects all ranks of a world.
func connectAll(ctx context.Context, t *testing.T, worlds []World) []*Member {
	t.Helper()
	members := make([]*Member, len(worlds))
	onEach(t, worlds, func(w World) (err error) {
		_, members[w.Rank], err = Connect(ctx, w)
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	return members
}

// TestEndOfARankEndsWaitsThatNeedIt checks that other waits continue, unless the rank served the
// store.
func TestEndOfARankEndsWaitsThatNeedIt(t *testing.T) {
	for name, route := range routesOf(t) {
		for _, victim := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s serves and rank %d ends", name, victim), func(t *testing.T) {
				ctx := testContext(t)
				members := connectAll(ctx, t, worldsOf(4, route))
				survivors := slices.Delete(slices.Clone(members), victim, victim+1)
				began := time.Now()
				if err := die(members[victim]); err != nil {
					t.Error(err)
				}
				for _, m := range survivors {
					wantEnded(ctx, t, m, []int{2, victim, 3}, victim)
					if victim == 0 && route.Kind == RouteServe {
						wantEnded(ctx, t, m, []int{1, 2, 3}, victim)
					}
				}
				if took := time.Since(began); took > prompt {
					t.Errorf("it took %v", took)
				}
				if victim != 0 {
					others, stop := survivors[0].Guard(ctx, []int{0, 2, 3})
					if err := survivors[0].store.Set(others, "key", nil); err != nil {
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

// wantEnded checks that a wait that needs some ranks ends with the end of one of them.
func wantEnded(ctx context.Context, t *testing.T, m *Member, ranks []int, victim int) {
	t.Helper()
	guarded, stop := m.Guard(ctx, ranks)
	defer stop()
	select {
	case <-guarded.Done():
	case <-time.After(patience):
	}
	var e *EndedError
	if !errors.As(context.Cause(guarded), &e) || e.Rank != victim || e.Left {
		t.Errorf("rank %d: the wait for %v ended with %v", m.world.Rank, ranks, context.Cause(guarded))
	}
	some := func(known []*EndedError) bool { return len(known) > 0 }
	ended := m.Ended(ctx, ranks, some)
	if len(ended) != 1 || ended[0].Rank != victim {
		t.Errorf("rank %d: ends %v of ranks %v, want %d", m.world.Rank, ended, ranks, victim)
	}
}

// TestRankThatEndsDuringConnectIsReported: ranks 0, 1 and 2 have sent greetings, rank 3 has not
// joined.
func TestRankThatEndsDuringConnectIsReported(t *testing.T) {
	for name, route := range routesOf(t) {
		for _, victim := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s serves and rank %d ends", name, victim), func(t *testing.T) {
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
				if err := m.open(ctx); err != nil {
					t.Fatal(err)
				}
				if err := m.join(ctx); err != nil {
					t.Fatal(err)
				}
				for _, w := range others {
					if err := m.store.Wait(ctx, joinedKey(w.Rank)); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				if err := die(m); err != nil {
					t.Error(err)
				}
				for range others {
					err := <-errs
					var e *EndedError
					if !errors.As(err, &e) || e.Rank != victim {
						t.Errorf("%v does not report the end of rank %d", err, victim)
					}
				}
				if took := time.Since(began); took > prompt {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// TestRankThatGivesUpDoesNotCountAsEnded gives rank 1 less time than the others; rank 2 does not
// join.
func TestRankThatGivesUpDoesNotCountAsEnded(t *testing.T) {
	for name, route := range routesOf(t) {
		t.Run(name+" serves", func(t *testing.T) {
			worlds := worldsOf(3, route)
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			short, end := context.WithCancel(ctx)
			errs := make(chan error)
			for rank, ctx := range []context.Context{ctx, short} {
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
			end()
			wantAbsent(t, <-errs, 2)
			// The end of rank 1 is stored, and rank 0 has processed it, since it reads in order.
			if err := probe.Wait(ctx, endKey(0)); err != nil {
				t.Fatal(err)
			}
			if err := probe.Close(); err != nil {
				t.Error(err)
			}
			cancel()
			wantAbsent(t, <-errs, 2)
		})
	}
}

func wantAbsent(t *testing.T, err error, ranks ...int) {
	t.Helper()
	var absent *AbsentError
	if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, ranks) ||
		errors.As(err, new(*EndedError)) {
		t.Errorf("%v does not report ranks %v as absent", err, ranks)
	}
}

// TestLeaveWaitsForAStoppedRankUntilItsDeadline: a stopped process keeps its connections.
func TestLeaveWaitsForAStoppedRankUntilItsDeadline(t *testing.T) {
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateName()}}
	members := connectAll(testContext(t), t, worldsOf(2, route))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := members[0].Leave(ctx, ""); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > prompt {
		t.Errorf("it took %v", took)
	}
	if err := members[1].Close(); err != nil {
		t.Error(err)
	}
}

// TestStoreWithoutEndsIsSupported: such a store (torchrun's) answers a greeting like any other
// comparison.
func TestStoreWithoutEndsIsSupported(t *testing.T) {
	server, client := serveOn(t, privateName(), "")
	answer, err := client.CompareSet(testContext(t), "key", []byte("words"), []byte("words"))
	if err != nil || string(answer) == greetAnswer {
		t.Fatalf("%q, %v", answer, err)
	}
	m := &Member{world: worldsOf(2, Route{Kind: RouteJoin})[1], client: client, base: "base"}
	m.base = strings.Repeat("x", maxGreetingBytes)
	w, err := startWatch(testContext(t), m, newClient(client.addr, client.dial))
	if w != nil || err != nil {
		t.Errorf("got %v, %v, want no watch without support for greetings", w, err)
	}
	guarded, stop := m.Guard(testContext(t), []int{0, 1})
	defer stop()
	if guarded.Err() != nil || len(m.Ended(testContext(t), []int{0}, nil)) != 0 {
		t.Error("an end was reported")
	}
	_ = server
}

// TestReasonToLeaveIsReported checks it on the other ranks, for every process that may serve the
// store.
func TestReasonToLeaveIsReported(t *testing.T) {
	for name, route := range routesOf(t) {
		t.Run(name+" serves", func(t *testing.T) {
			ctx := testContext(t)
			members := connectAll(ctx, t, worldsOf(3, route))
			reasons := map[int]string{1: "out of memory", 2: strings.Repeat("x", MaxWhy+1)}
			for rank, why := range reasons {
				if err := members[rank].Leave(ctx, why); err != nil {
					t.Error(err)
				}
			}
			reasons[2] = "" // too long
			ended := members[0].Ended(ctx, []int{1, 2}, func(known []*EndedError) bool {
				return len(known) == len(reasons)
			})
			for _, e := range ended {
				if !e.Left || e.Why != reasons[e.Rank] {
					t.Errorf("rank %d: %+v, want %q", e.Rank, e, reasons[e.Rank])
				}
			}
			if err := members[0].Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLeaveIsReportedOverTheWatch leaves after the other connections were lost, while rank 0, which
// leaves too, accepts no new ones.
func TestLeaveIsReportedOverTheWatch(t *testing.T) {
	ctx := testContext(t)
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateName()}}
	members := connectAll(ctx, t, worldsOf(3, route))
	left := make(chan error)
	go func() { left <- members[0].Close() }()
	for network, addr, _ := split(route.Endpoint.Address); ; {
		probe, err := net.Dial(network, addr)
		if err != nil {
			break // rank 0 has stopped listening
		}
		if err := probe.Close(); err != nil {
			t.Error(err)
		}
	}
	members[1].client.loseLinks()
	if err := members[1].Leave(ctx, "out of memory"); err != nil {
		t.Error(err)
	}
	ended := members[2].Ended(ctx, []int{1}, func(known []*EndedError) bool {
		return len(known) > 0
	})
	if len(ended) != 1 || !ended[0].Left || ended[0].Why != "out of memory" {
		t.Errorf("rank 2 got the ends %+v", ended)
	}
	if err := errors.Join(members[2].Close(), <-left); err != nil {
		t.Error(err)
	}
}

// loseLinks closes all connections, as calls do whose context ends during a request.
func (c *Client) loseLinks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.all {
		l.conn.Close()
	}
	c.all, c.idle = map[*link]bool{}, nil
}
