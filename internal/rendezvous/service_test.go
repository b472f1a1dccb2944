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

// Ranks that call Connect together form a world, and each gets a Member to leave the world. If rank
// 0 calls Connect twice for one address, both worlds share the store that rank 0 serves.

func routeToRankZero() Route {
	return Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
}

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
		leavesInReverse := w.Rank == 1
		if leavesInReverse {
			slices.Reverse(members)
		}

		for _, member := range members {
			err = errors.Join(err, member.Close())
		}

		return err
	})
	connectAndClose(t, worlds) // The address is free again.
}

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

// Ranks 0 and 1 join a large world with rank 2, and a small one without it. When they have left the
// large world, rank 2 can still use the store.
func TestServerOutlivesFirstWorld(t *testing.T) {
	route := routeToRankZero()
	large := worldsOf(3, route)
	small := worldsOf(2, route)
	ctx := testContext(t)
	hasLeftLarge := make(chan struct{}) // closed by rank 0
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			_, largeMember := connectOrFail(ctx, t, large[rank])
			_, smallMember := connectOrFail(ctx, t, small[rank])
			if err := largeMember.Close(); err != nil {
				t.Errorf("rank %d leaves the large world: %v", rank, err)
			}

			if rank == 0 {
				close(hasLeftLarge)
			}

			if err := smallMember.Close(); err != nil {
				t.Errorf("rank %d leaves the small world: %v", rank, err)
			}
		})
	}

	ranks.Go(func() {
		store, member := connectOrFail(ctx, t, large[2])
		<-hasLeftLarge
		const callCount = 200 // enough for ranks 0 and 1 to leave the small world meanwhile
		for range callCount {
			if err := store.Set(ctx, "key", nil); err != nil {
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

// connectOrFail calls Connect. If this fails, the test fails, and closing the result has no effect.
func connectOrFail(ctx context.Context, t *testing.T, w World) (*Client, io.Closer) {
	store, member, err := Connect(ctx, w)
	if err != nil {
		t.Error(err)
		return store, io.NopCloser(nil)
	}

	return store, member
}

// All three ranks join a first world. Rank 2 does not join the second one, so Connect fails. Rank 0
// can then leave as soon as the others have left the first world.
func TestFailedConnectDoesNotDelayLeave(t *testing.T) {
	route := routeToRankZero()
	ctx := testContext(t)
	worlds := worldsOf(3, route)
	members := make([]*Member, len(worlds))
	forEachRank(t, worlds, func(w World) (err error) {
		_, members[w.Rank], err = Connect(ctx, w)
		return err
	})
	// Leave on rank 0 does not wait for this client, which stays connected.
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
		// A Leave that waits for rank 2 is still blocked when ctx ends.
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

// failSecondConnect calls Connect on ranks 0 and 1, and cancels the calls when both ranks have set
// their keys in the store. The calls must return an AbsentError. c is a client of the store.
func failSecondConnect(ctx context.Context, t *testing.T, c *Client, worlds []World) {
	t.Helper()
	connectCtx, cancel := context.WithCancel(ctx)
	go func() {
		// Run ID "none", 0 restarts, 3 ranks, call 2 of Connect.
		const joinedPrefix = "symmem/none/0/3/2/joined/"
		if err := c.Wait(ctx, joinedPrefix+"0", joinedPrefix+"1"); err != nil {
			t.Error(err)
		}

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
