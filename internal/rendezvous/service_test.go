package rendezvous

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Each call of Connect connects this rank to a world: a set of ranks. Rank 0 serves the store of a
// world in a service. If it calls Connect twice, both worlds share the service. Each call returns a
// Member, by which a rank leaves the world. The last Member of rank 0 closes the service, after the
// other ranks have left.

// routeToRankZero returns a route to a store that rank 0 serves at a new address.
func routeToRankZero() Route {
	return Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
}

// TestRanksLeaveWorldsInAnyOrder connects each rank to two worlds of the same ranks. Rank 1 leaves
// them in the opposite order, which must not block any rank.
func TestRanksLeaveWorldsInAnyOrder(t *testing.T) {
	worlds := worldsOf(3, routeToRankZero())
	ctx := testContext(t)
	forEachRank(t, worlds, func(w World) error {
		first, firstMember, err := Connect(ctx, w)
		if err != nil {
			return err
		}

		second, secondMember, err := Connect(ctx, w)
		if err != nil {
			return errors.Join(err, firstMember.Close())
		}

		err = errors.Join(exchangeValues(ctx, second, w), exchangeValues(ctx, first, w))
		members := []io.Closer{firstMember, secondMember}
		if w.Rank == 1 {
			slices.Reverse(members)
		}

		for _, m := range members {
			err = errors.Join(err, m.Close())
		}

		return err
	})
	connectAndClose(t, worlds) // A new service can use the address.
}

// TestSecondServiceWithAnotherTokenIsRefused calls joinService twice in one process, for the same
// address. The second call has another token, so it must fail instead of sharing the service.
func TestSecondServiceWithAnotherTokenIsRefused(t *testing.T) {
	endpoint := Endpoint{Address: privateAddress(), Token: "one"}
	s, err := joinService(testContext(t), endpoint, &World{Size: 1})
	if err != nil {
		t.Fatal(err)
	}

	closeLater(t, s.server)
	endpoint.Token = "another"
	_, err = joinService(testContext(t), endpoint, &World{Size: 1})
	if err == nil || !strings.Contains(err.Error(), "with another token") {
		t.Errorf("joinService = %v, want an error that contains \"with another token\"", err)
	}

	isLast, _ := s.removeMember()
	if !isLast {
		t.Error("the refused call of joinService added a member")
	}
}

// TestServerOutlivesFirstWorld connects ranks 0 and 1 to two worlds: a large one with rank 2, and a
// small one without it. They leave the large one first. Rank 2 must still be able to use the store.
func TestServerOutlivesFirstWorld(t *testing.T) {
	route := routeToRankZero()
	large := worldsOf(3, route)
	small := worldsOf(2, route)
	ctx := testContext(t)
	hasLeft := make(chan struct{}) // closed when rank 0 has left the large world
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			_, largeMember := connectOrFail(ctx, t, large[rank])
			_, smallMember := connectOrFail(ctx, t, small[rank])
			if err := largeMember.Close(); err != nil {
				t.Errorf("rank %d leaves the large world: %v", rank, err)
			}

			if rank == 0 {
				close(hasLeft)
			}

			if err := smallMember.Close(); err != nil {
				t.Errorf("rank %d leaves the small world: %v", rank, err)
			}
		})
	}

	ranks.Go(func() {
		s, member := connectOrFail(ctx, t, large[2])
		<-hasLeft
		for range 200 { // long enough to overlap with the end of the small world
			if err := s.Set(ctx, "key", nil); err != nil {
				t.Errorf("rank 2: %v", err)
				break
			}
		}

		if err := member.Close(); err != nil {
			t.Error(err)
		}
	})
	ranks.Wait()
}

// connectOrFail calls Connect. If that fails, the test fails, and Close of the returned member has
// no effect.
func connectOrFail(ctx context.Context, t *testing.T, w World) (*Client, io.Closer) {
	s, member, err := Connect(ctx, w)
	if err != nil {
		t.Error(err)
		return s, io.NopCloser(nil)
	}

	return s, member
}

// TestFailedConnectDoesNotDelayLeave connects three ranks to a first world. Only ranks 0 and 1 try
// to connect to a second world, which fails. When ranks 1 and 2 have left the first world, rank 0
// must be able to leave it, although another client is still connected to its store.
func TestFailedConnectDoesNotDelayLeave(t *testing.T) {
	route := routeToRankZero()
	ctx := testContext(t)
	worlds := worldsOf(3, route)
	members := make([]*Member, len(worlds))
	forEachRank(t, worlds, func(w World) (err error) {
		_, members[w.Rank], err = Connect(ctx, w)
		return err
	})
	otherClient, err := Dial(ctx, route.Endpoint)
	if err != nil {
		t.Fatal(err)
	}

	closeLater(t, otherClient)
	failSecondConnect(ctx, t, otherClient, worlds)
	for _, rank := range []int{1, 2} {
		if err := members[rank].Close(); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}

	leaveResult := make(chan error, 1)
	go func() {
		// This context must end after ctx, so that the test detects a Leave that waits.
		longCtx, cancel := context.WithTimeout(context.Background(), 2*testTimeout)
		defer cancel()
		leaveResult <- members[0].Leave(longCtx, "")
	}()
	select {
	case err := <-leaveResult:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("Leave on rank 0 waits for the ranks of a world that rank 2 did not join")
	}
}

// failSecondConnect calls Connect on ranks 0 and 1, but not on rank 2. It cancels both calls when
// both ranks have joined, and checks that they return an AbsentError. c is a client of the store.
func failSecondConnect(ctx context.Context, t *testing.T, c *Client, worlds []World) {
	t.Helper()
	connectCtx, cancel := context.WithCancel(ctx)
	go func() {
		// The keys contain the run ID "none", attempt 0, size 3 and the number of the world, 2.
		_ = c.Wait(ctx, "symmem/none/0/3/2/joined/0", "symmem/none/0/3/2/joined/1")
		cancel()
	}()
	forEachRank(t, worlds[:2], func(w World) error {
		var absent *AbsentError
		_, _, err := Connect(connectCtx, w)
		if !errors.As(err, &absent) {
			return errors.Join(errors.New("Connect returned no AbsentError for rank 2"), err)
		}

		return nil
	})
}
