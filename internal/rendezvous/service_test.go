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

func TestRanksLeaveWorldsInAnyOrder(t *testing.T) {
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}})
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
		members := []io.Closer{firstMember, secondMember}
		if w.Rank == 1 {
			slices.Reverse(members)
		}
		return errors.Join(exchangeValues(ctx, second, w), exchangeValues(ctx, first, w),
			members[0].Close(), members[1].Close())
	})
	connectAndClose(t, worlds)
}

func TestSecondServiceWithAnotherTokenIsRefused(t *testing.T) {
	endpoint := Endpoint{Address: privateAddress(), Token: "one"}
	s, err := joinService(testContext(t), endpoint, &World{Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s.server)
	endpoint.Token = "another"
	if _, err := joinService(testContext(t), endpoint, &World{Size: 1}); err == nil ||
		!strings.Contains(err.Error(), "with another token") {
		t.Errorf("got %v, want an error about the token", err)
	}
	if isLast, _ := s.removeMember(); !isLast {
		t.Error("the refused call of joinService added a member")
	}
}

// TestServerOutlivesFirstWorld makes rank 0 leave a world of three ranks and then one of two. Rank
// 2, which is only in the first, must be able to use the store after rank 0 has left it.
func TestServerOutlivesFirstWorld(t *testing.T) {
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
	large, small := worldsOf(3, route), worldsOf(2, route)
	ctx := testContext(t)
	hasLeft := make(chan struct{})
	connect := func(w World) (*Client, io.Closer) {
		s, member, err := Connect(ctx, w)
		if err != nil {
			t.Error(err)
			return s, io.NopCloser(nil)
		}
		return s, member
	}
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			_, largeMember := connect(large[rank])
			_, smallMember := connect(small[rank])
			err := largeMember.Close()
			if rank == 0 {
				close(hasLeft)
			}
			if err := errors.Join(err, smallMember.Close()); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	ranks.Go(func() {
		s, member := connect(large[2])
		<-hasLeft
		for range 200 {
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

// TestFailedConnectDoesNotDelayLeave calls Connect twice. The second call fails, because rank 2
// does not join. Rank 0 must be able to leave the first world although another client is connected.
func TestFailedConnectDoesNotDelayLeave(t *testing.T) {
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateAddress()}}
	ctx := testContext(t)
	members := make([]*Member, 3)
	forEachRank(t, worldsOf(3, route), func(w World) (err error) {
		_, members[w.Rank], err = Connect(ctx, w)
		return err
	})
	otherClient, err := Dial(ctx, route.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, otherClient)
	secondCtx, cancel := context.WithCancel(ctx)
	go func() {
		// Cancel Connect after both ranks have joined, so that it can list the absent rank.
		_ = otherClient.Wait(ctx, "symmem/none/0/3/2/joined/0", "symmem/none/0/3/2/joined/1")
		cancel()
	}()
	forEachRank(t, worldsOf(3, route)[:2], func(w World) error {
		var absent *AbsentError
		if _, _, err := Connect(secondCtx, w); !errors.As(err, &absent) {
			return errors.Join(errors.New("Connect returned no AbsentError for rank 2"), err)
		}
		return nil
	})
	closed := make(chan error, 1)
	if err := errors.Join(members[1].Close(), members[2].Close()); err != nil {
		t.Error(err)
	}
	go func() {
		longCtx, cancel := context.WithTimeout(context.Background(), 2*testTimeout)
		defer cancel()
		closed <- members[0].Leave(longCtx, "")
	}()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("Leave on rank 0 waits for the ranks of a world that rank 2 did not join")
	}
}
