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
	do func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error
	// killsVictim is set if do kills the victim. Otherwise, another goroutine kills it.
	killsVictim bool
	// direct is set if the round needs the direct path.
	direct bool
	// unmaps is set if the survivors must have unmapped all memory after Close. It is not set for
	// NCCL's window kernels, because aborted ones keep memory mapped until the process exits.
	unmaps bool
}

var rounds = map[string]round{
	"a collective on the plain path": {do: collectiveRound(symmem.PathPlain, many)},
	"a collective over windows":      {do: collectiveRound(symmem.PathWindow, many)},
	"a collective over peers' buffers": {
		do: collectiveRound(symmem.PathDirect, bulk), direct: true,
	},
	"a collective in lines": {do: collectiveRound(symmem.PathDirect, few), direct: true},
	"a launched collective": {
		do: launchedRound(symmem.PathWindow, many), killsVictim: true,
	},
	"a launched kernel": {
		do: launchedRound(symmem.PathDirect, few), killsVictim: true, direct: true,
	},
	"a launched large kernel": {
		do: launchedRound(symmem.PathDirect, bulk), killsVictim: true, direct: true,
	},
	"a kernel that waits for the others": {do: inKernelRound, killsVictim: true, direct: true},
	"a completed kernel":                 {do: afterKernelRound, killsVictim: true, direct: true},
	"a registration": {do: func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		b, err := p.Alloc(8 * mib)
		if err != nil {
			return err
		}
		return errors.Join(p.Register(ctx, rt.World()), b.Free(), p.Trim(ctx, 0))
	}},
	"a suspension of its pool": {
		do:          suspensionRound(symmem.PathAuto, symmem.SuspendingPool),
		killsVictim: true, unmaps: true,
	},
	"a resumption of its pool": {
		do:          suspensionRound(symmem.PathAuto, symmem.ResumingPool),
		killsVictim: true, unmaps: true,
	},
	"a suspension of the group": {
		do:          suspensionRound(symmem.PathDirect, symmem.SuspendingGroup),
		killsVictim: true, direct: true, unmaps: true,
	},
	"a resumption of the group": {
		do:          suspensionRound(symmem.PathDirect, symmem.ResumingGroup),
		killsVictim: true, direct: true, unmaps: true,
	},
	"a value": {do: func(ctx context.Context, rt *symmem.Runtime, _ *symmem.Pool) error {
		return rt.World().Agree(ctx, "round", 1)
	}},
	"an agreement": {do: func(ctx context.Context, rt *symmem.Runtime, _ *symmem.Pool) error {
		return rt.World().Check(ctx)
	}},
}

// The number of elements determines the kernel. NCCL's collectives use many. A direct collective
// on bulk elements accesses the buffers of its peers, whereas one on few elements copies data
// through exchange memory, in lines of 128 bytes that end with a flag. A buffer of bulk elements
// fills the pool's first segment.
const (
	many = 1 << 20
	bulk = 2 << 20
	few  = 1000
)

// TestDirectRoundsLaunchNamedKernels checks which kernels the backend chooses for the direct
// rounds. Large calls outside windows do not use peers' buffers.
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

// launchedRound returns a round in which the victim dies while the other ranks wait in the
// collective, because a host function on the victim's stream kills the process before the
// collective starts.
func launchedRound(
	c symmem.PathChoice, count int64,
) func(context.Context, *symmem.Runtime, *symmem.Pool) error {
	return func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		if isVictim() && timeToDie(rt) {
			if err := rt.DefaultStream().Host(die); err != nil {
				return err
			}
		}
		return collectiveRound(c, count)(ctx, rt, p)
	}
}

// inKernelRound kills the victim while the victim's kernel waits for the kernels of the other
// ranks, which start only after the victim's death.
func inKernelRound(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
	if isVictim() {
		if _, err := victimListener(); err != nil {
			return err
		}
	}
	if timeToDie(rt) {
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

// victimListener is a socket of the victim. Other ranks connect to it to detect the victim's death.
var victimListener = sync.OnceValues(func() (net.Listener, error) {
	return net.Listen("unix", victimAddress())
})

func victimAddress() string {
	return strings.TrimPrefix(os.Getenv(storeVariable), "unix:") + "-victim"
}

func awaitVictim() {
	c, err := net.Dial("unix", victimAddress())
	if err != nil {
		return // the victim has died
	}
	defer c.Close()
	_, _ = c.Read(make([]byte, 1))
}

// suspensionRound returns a round in which all ranks suspend and resume the pool and, on the
// direct path, the world. The victim dies at a random moment during one of these calls.
func suspensionRound(
	c symmem.PathChoice, inCall func(*symmem.Group, *symmem.Pool) bool,
) func(context.Context, *symmem.Runtime, *symmem.Pool) error {
	return func(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
		if err := collectiveRound(c, few)(ctx, rt, p); err != nil {
			return err
		}
		if isVictim() && timeToDie(rt) {
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

// afterKernelRound kills the victim when the victim's kernel has completed, at which point the
// other ranks may still be executing the collective.
func afterKernelRound(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
	err := collectiveRound(symmem.PathDirect, few)(ctx, rt, p)
	if isVictim() && timeToDie(rt) {
		die()
	}
	return err
}

func yield(times int) {
	for range times {
		syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// timeToDie reports whether this rank's world has run enough collectives for the victim to die.
func timeToDie(rt *symmem.Runtime) bool {
	var launched uint64
	for _, n := range rt.World().Stats().Paths {
		launched += n
	}
	return launched >= roundsBefore
}
