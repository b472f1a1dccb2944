package symmem_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"symmem"
	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// round is something in which a rank dies. All ranks do it again and again.
type round struct {
	do func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error
	// itself reports whether the round ends the victim. Else it ends in the middle of one.
	itself bool
	// direct reports whether the round is about the direct path, without which it is another.
	direct bool
}

var rounds = map[string]round{
	"a collective on the plain path": {do: collectiveRound(symmem.PathPlain, many)},
	"a collective over windows":      {do: collectiveRound(symmem.PathWindow, many)},
	"a collective over peers' buffers": {
		do: collectiveRound(symmem.PathDirect, bulk), direct: true,
	},
	"a collective in lines":             {do: collectiveRound(symmem.PathDirect, few), direct: true},
	"a collective that it has launched": {do: launchedRound(symmem.PathWindow, many), itself: true},
	"a kernel that it has launched": {
		do: launchedRound(symmem.PathDirect, few), itself: true, direct: true,
	},
	"a large kernel that it has launched": {
		do: launchedRound(symmem.PathDirect, bulk), itself: true, direct: true,
	},
	"a kernel that waits for the others": {do: insideRound, itself: true, direct: true},
	"a kernel that has ended":            {do: afterRound, itself: true, direct: true},
	"a registration": {do: func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		b, err := p.Alloc(8 * mib)
		if err != nil {
			return err
		}
		return errors.Join(p.Register(ctx, rt.World()), b.Free(), p.Trim(ctx, 0))
	}},
	"a value": {do: func(ctx context.Context, rt *symmem.Runtime, _ *symmem.Pool) error {
		return rt.World().Agree(ctx, "round", 1)
	}},
	"an agreement": {do: func(ctx context.Context, rt *symmem.Runtime, _ *symmem.Pool) error {
		return rt.World().Check(ctx)
	}},
}

// Counts of elements: of NCCL's collectives, and of ours over peers' buffers and in lines. A buffer
// of the largest fills the first segment.
const (
	many = 1 << 20
	bulk = 2 << 20
	few  = 1000
)

// TestDirectRoundsLaunchNamedKernels asks for them as the backend does. Outside of windows
// the large ones do not go over buffers.
func TestDirectRoundsLaunchNamedKernels(t *testing.T) {
	for _, row := range []struct {
		count           int64
		symmetric, bulk bool
	}{
		{few, true, false},
		{few, false, false},
		{bulk, true, true},
		{bulk, false, false},
	} {
		for _, ranks := range []int{2, lostRanks} {
			launch := kernels.Launch{
				Call: &driver.Call{
					Operation: driver.AllReduce, DataType: driver.Float32, Count: row.count,
				},
				Ranks: ranks, Symmetric: row.symmetric, Multiprocessors: 132,
			}
			if err := launch.Choose(); err != nil || launch.Bulk != row.bulk {
				t.Errorf("%d ranks, %d elements, in windows: %v: %s, over buffers: %v, %v", ranks,
					row.count, row.symmetric, launch.Kernel, launch.Bulk, err)
			}
		}
	}
}

// collectiveRound adds up a buffer on a path.
func collectiveRound(
	c symmem.PathChoice, count int64,
) func(context.Context, *symmem.Runtime, *symmem.Pool) error {
	return func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		b, err := p.Alloc(4 * count)
		if err != nil {
			return err
		}
		m := b.Memory()
		return errors.Join(
			rt.World().SetPath(ctx, c),
			rt.World().AllReduce(ctx, m, m, count, symmem.Float32, symmem.Sum, nil),
			rt.DefaultStream().Synchronize(ctx),
			b.Free())
	}
}

// launchedRound has the victim's stream end the process before its part of the collective, so that
// the others have their part under way and it never comes.
func launchedRound(
	c symmem.PathChoice, count int64,
) func(context.Context, *symmem.Runtime, *symmem.Pool) error {
	return func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		if isVictim() && isTime(rt) {
			if err := rt.DefaultStream().Host(die); err != nil {
				return err
			}
		}
		return collectiveRound(c, count)(ctx, rt, p)
	}
}

// insideRound has another stream of the victim end the process while its kernel waits for those of
// the others, which come once it has ended.
func insideRound(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
	if isVictim() {
		if _, err := victimLives(); err != nil {
			return err
		}
	}
	if isTime(rt) {
		end, s := awaitVictim, rt.DefaultStream()
		if isVictim() {
			other, err := rt.NewStream()
			if err != nil {
				return err
			}
			end, s = func() { yield(1_000); die() }, other
		}
		if err := s.Host(end); err != nil {
			return err
		}
	}
	return collectiveRound(symmem.PathDirect, few)(ctx, rt, p)
}

// victimLives has the victim listen, as long as it lives, where the others wait for its end.
var victimLives = sync.OnceValues(func() (net.Listener, error) {
	return net.Listen("unix", victimAddress())
})

func victimAddress() string {
	return strings.TrimPrefix(os.Getenv(storeVariable), "unix:") + "-victim"
}

// awaitVictim returns when the victim has ended.
func awaitVictim() {
	c, err := net.Dial("unix", victimAddress())
	if err != nil {
		return // it has
	}
	defer c.Close()
	_, _ = c.Read(make([]byte, 1))
}

// afterRound has the victim end when its part is over, which that of the others need not be.
func afterRound(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
	err := collectiveRound(symmem.PathDirect, few)(ctx, rt, p)
	if isVictim() && isTime(rt) {
		die()
	}
	return err
}

func yield(times int) {
	for range times {
		syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// isTime reports whether the world has done enough collectives for the victim to end.
func isTime(rt *symmem.Runtime) bool {
	var launched uint64
	for _, n := range rt.World().Stats().Paths {
		launched += n
	}
	return launched >= roundsBefore
}
