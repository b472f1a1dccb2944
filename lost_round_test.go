package symmem_test

import (
	"context"
	"errors"
	"math/rand/v2"
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

// round describes an operation that all ranks repeat until the victim dies in the middle of it.
type round struct {
	run func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error
	// killsVictim is set if run kills the victim. Otherwise, another goroutine does.
	killsVictim bool
	// direct is set if the round needs the direct path.
	direct bool
	// mustUnmap is set if the survivors must have unmapped all memory after Close. Aborted window
	// kernels of NCCL keep memory mapped until the process exits.
	mustUnmap bool
}

var rounds = map[string]round{
	"a collective on the plain path": {run: collectiveRound(symmem.PathPlain, many)},
	"a collective over windows":      {run: collectiveRound(symmem.PathWindow, many)},
	"a collective over peers' buffers": {
		run: collectiveRound(symmem.PathDirect, bulk), direct: true,
	},
	"a collective in lines": {run: collectiveRound(symmem.PathDirect, few), direct: true},
	"a launched collective": {
		run: launchedRound(symmem.PathWindow, many), killsVictim: true,
	},
	"a launched kernel": {
		run: launchedRound(symmem.PathDirect, few), killsVictim: true, direct: true,
	},
	"a launched large kernel": {
		run: launchedRound(symmem.PathDirect, bulk), killsVictim: true, direct: true,
	},
	"a kernel that waits for the others": {run: inKernelRound, killsVictim: true, direct: true},
	"a completed kernel":                 {run: afterKernelRound, killsVictim: true, direct: true},
	"a dispatch and a combine":           {run: routeRound},
	"a registration": {run: func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		b, err := p.Alloc(8 * mib)
		if err != nil {
			return err
		}

		return errors.Join(p.Register(ctx, rt.World()), b.Free(), p.Trim(ctx, 0))
	}},
	"a suspension of its pool": {
		run:         suspensionRound(symmem.PathAuto, symmem.SuspendingPool),
		killsVictim: true, mustUnmap: true,
	},
	"a resumption of its pool": {
		run:         suspensionRound(symmem.PathAuto, symmem.ResumingPool),
		killsVictim: true, mustUnmap: true,
	},
	"a suspension of the group": {
		run:         suspensionRound(symmem.PathDirect, symmem.SuspendingGroup),
		killsVictim: true, direct: true, mustUnmap: true,
	},
	"a resumption of the group": {
		run:         suspensionRound(symmem.PathDirect, symmem.ResumingGroup),
		killsVictim: true, direct: true, mustUnmap: true,
	},
	"a value": {run: func(ctx context.Context, rt *symmem.Runtime, _ *symmem.Pool) error {
		return rt.World().Agree(ctx, "round", 1)
	}},
	"an agreement": {run: func(ctx context.Context, rt *symmem.Runtime, _ *symmem.Pool) error {
		return rt.World().Check(ctx)
	}},
}

// The number of elements determines the kernel. NCCL's collectives use many. Direct collectives on
// bulk elements, which fill the pool's first segment, access peers' buffers. Those on few elements
// copy data through exchange memory, in lines of 128 bytes that end with a flag.
const (
	many = 1 << 20
	bulk = 2 << 20
	few  = 1000
)

// TestDirectRoundsLaunchNamedKernels checks which kernels the backend chooses for direct rounds.
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
				t.Errorf("%d ranks, %d elements, symmetric %v: got %s, bulk %v, %v; want bulk %v",
					ranks, row.count, row.symmetric, launch.Kernel, launch.Bulk, err, row.bulk)
			}
		}
	}
}

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

// routeRound dispatches rows to the first rank, and combines them.
func routeRound(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
	routing := symmem.Routing{
		Experts: rt.Size(), TopK: 1, MaxTokens: 64, Hidden: 1024, Type: symmem.BFloat16,
	}
	all, err := p.Alloc(routing.Layout(rt.Size()).Bytes)
	if err != nil {
		return err
	}

	own, err := p.Alloc(routing.MaxTokens * 2 * routing.Hidden)
	if err != nil {
		return err
	}

	ids, err := p.Alloc(4 * routing.MaxTokens)
	if err != nil {
		return err
	}

	a := symmem.RouteArgs{
		Routing: routing, Tokens: routing.MaxTokens, Send: own.Memory(), Recv: all.Memory(),
		IDs: ids.Memory(), Weights: own.Memory(),
	}
	back := a
	back.Send, back.Recv = a.Recv, a.Send
	return errors.Join(
		rt.World().SetPath(ctx, symmem.PathAuto),
		rt.DefaultStream().Fill(a.IDs, 0),
		rt.World().Dispatch(ctx, a, nil),
		rt.World().Combine(ctx, back, nil),
		rt.DefaultStream().Synchronize(ctx),
		all.Free(), own.Free(), ids.Free())
}

// launchedRound returns a round in which the victim dies while the others wait in the collective: a
// host function on its stream kills the process before its collective starts.
func launchedRound(
	c symmem.PathChoice, count int64,
) func(context.Context, *symmem.Runtime, *symmem.Pool) error {
	return func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		if isVictim() && isTimeToDie(rt) {
			if err := rt.DefaultStream().Host(die); err != nil {
				return err
			}
		}

		return collectiveRound(c, count)(ctx, rt, p)
	}
}

// inKernelRound kills the victim while its kernel waits for those of the other ranks, which start
// only after its death.
func inKernelRound(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
	if isVictim() {
		if _, err := victimListener(); err != nil {
			return err
		}
	}

	if isTimeToDie(rt) {
		end, s := awaitVictimDeath, rt.DefaultStream()
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

// victimListener lets other ranks detect the victim's death.
var victimListener = sync.OnceValues(func() (net.Listener, error) {
	return net.Listen("unix", victimAddress())
})

func victimAddress() string {
	return strings.TrimPrefix(os.Getenv(storeVariable), "unix:") + "-victim"
}

func awaitVictimDeath() {
	c, err := net.Dial("unix", victimAddress())
	if err != nil {
		return // the victim has died
	}
	defer c.Close()
	_, _ = c.Read(make([]byte, 1))
}

// suspensionRound returns a round in which all ranks suspend and resume the pool and, on the direct
// path, the world. The victim dies at a random moment.
func suspensionRound(
	c symmem.PathChoice, inCall func(*symmem.Group, *symmem.Pool) bool,
) func(context.Context, *symmem.Runtime, *symmem.Pool) error {
	return func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		if err := collectiveRound(c, few)(ctx, rt, p); err != nil {
			return err
		}

		if isVictim() && isTimeToDie(rt) {
			go func() {
				for !inCall(rt.World(), p) {
					yield(1)
				}

				yield(rand.IntN(300))
				die()
			}()
		}

		_, err := p.Suspend(ctx, symmem.KeepContents)
		if err != nil || c != symmem.PathDirect {
			return errors.Join(err, p.Resume(ctx))
		}

		_, err = rt.World().Suspend(ctx)
		return errors.Join(err, rt.World().Resume(ctx), p.Resume(ctx))
	}
}

// afterKernelRound kills the victim after its kernel, while the other ranks may still be executing
// the collective.
func afterKernelRound(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
	err := collectiveRound(symmem.PathDirect, few)(ctx, rt, p)
	if isVictim() && isTimeToDie(rt) {
		die()
	}

	return err
}

func yield(times int) {
	for range times {
		syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// isTimeToDie reports whether the world has run enough collectives for the victim to die.
func isTimeToDie(rt *symmem.Runtime) bool {
	var launched uint64
	for _, n := range rt.World().Stats().Paths {
		launched += n
	}

	return launched >= roundsBefore
}
