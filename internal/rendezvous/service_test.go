package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestRanksInSeveralWorlds leaves two worlds in a different order on rank 1 than on the other
// ranks.
func TestRanksInSeveralWorlds(t *testing.T) {
	worlds := worldsOf(3, Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateName()}})
	ctx := testContext(t)
	forEachRank(t, worlds, func(w World) error {
		first, leaveFirst, err := Connect(ctx, w)
		if err != nil {
			return err
		}
		second, leaveSecond, err := Connect(ctx, w)
		if err != nil {
			return errors.Join(err, leaveFirst.Close())
		}
		leaves := []io.Closer{leaveFirst, leaveSecond}
		if w.Rank == 1 {
			slices.Reverse(leaves)
		}
		return errors.Join(exchangeValues(ctx, second, w), exchangeValues(ctx, first, w),
			leaves[0].Close(), leaves[1].Close())
	})
	connectAndClose(t, worlds)
}

// TestSecondServiceWithAnotherTokenIsRefused checks that serve returns an error at once instead of
// waiting for the address.
func TestSecondServiceWithAnotherTokenIsRefused(t *testing.T) {
	endpoint := Endpoint{Address: privateName(), Token: "one"}
	s, err := serve(testContext(t), endpoint, &World{Size: 1})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s.server)
	endpoint.Token = "another"
	if _, err := serve(testContext(t), endpoint, &World{Size: 1}); err == nil ||
		!strings.Contains(err.Error(), "with another token") {
		t.Errorf("got %v, want an error about the token", err)
	}
	if last, _ := s.leave(); !last {
		t.Error("a refused call added a member")
	}
}

// TestLastWorldServesAllOthers closes the larger of two worlds first.
func TestLastWorldServesAllOthers(t *testing.T) {
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateName()}}
	large, small := worldsOf(3, route), worldsOf(2, route)
	ctx := testContext(t)
	closing := make(chan struct{})
	enter := func(w World) (*Client, io.Closer) {
		s, leave, err := Connect(ctx, w)
		if err != nil {
			t.Error(err)
			return s, io.NopCloser(nil)
		}
		return s, leave
	}
	var all sync.WaitGroup
	for rank := range 2 {
		all.Go(func() {
			_, leaveLarge := enter(large[rank])
			_, leaveSmall := enter(small[rank])
			err := leaveLarge.Close()
			if rank == 0 {
				close(closing)
			}
			if err := errors.Join(err, leaveSmall.Close()); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	all.Go(func() {
		s, leave := enter(large[2])
		<-closing
		for range 200 {
			if err := s.Set(ctx, "key", nil); err != nil {
				t.Errorf("rank 2: %v", err)
				break
			}
		}
		if err := leave.Close(); err != nil {
			t.Error(err)
		}
	})
	all.Wait()
}

// TestFailedConnectDoesNotDelayLeave leaves the first world after Connect for the second has failed
// because rank 2 did not join, and while another client is still connected.
func TestFailedConnectDoesNotDelayLeave(t *testing.T) {
	route := Route{Kind: RouteServe, Endpoint: Endpoint{Address: privateName()}}
	ctx := testContext(t)
	leaves := make([]*Member, 3)
	forEachRank(t, worldsOf(3, route), func(w World) (err error) {
		_, leaves[w.Rank], err = Connect(ctx, w)
		return err
	})
	guest, err := Dial(ctx, route.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, guest)
	secondCtx, cancel := context.WithCancel(ctx)
	go func() {
		// Wait until both ranks have joined. Before that, Connect could not name the absent ranks.
		_ = guest.Wait(ctx, "symmem/none/0/3/2/joined/0", "symmem/none/0/3/2/joined/1")
		cancel()
	}()
	forEachRank(t, worldsOf(3, route)[:2], func(w World) error {
		var absent *AbsentError
		if _, _, err := Connect(secondCtx, w); !errors.As(err, &absent) {
			return fmt.Errorf("got %w, want an error that rank 2 is absent", err)
		}
		return nil
	})
	closed := make(chan error, 1)
	if err := errors.Join(leaves[1].Close(), leaves[2].Close()); err != nil {
		t.Error(err)
	}
	go func() {
		long, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		closed <- leaves[0].Leave(long, "")
	}()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("rank 0 waits for ranks to leave a world that they have not joined")
	}
}
