package bench

import (
	"math/rand/v2"
	"runtime"

	"symmem/internal/sys"
)

// processors are those on which a rank measures one after the other. A processor of a virtual
// machine may be one thread of a core whose other thread is somebody else's, and half as fast then.
type processors []int

// processorsOf draws at most so many of those that this process may use. No two ranks of a machine
// are on one at the same time, as long as there are enough.
func processorsOf(rank, ranks, most int) (processors, error) {
	allowed, err := sys.Affinity()
	if err != nil {
		return nil, err
	}
	// The same order on all ranks.
	r := rand.New(rand.NewPCG(uint64(len(allowed)), 0))
	r.Shuffle(len(allowed), func(i, j int) { allowed[i], allowed[j] = allowed[j], allowed[i] })
	var mine processors
	for n := range min(most, len(allowed)) {
		mine = append(mine, allowed[(rank+n*ranks)%len(allowed)])
	}
	return mine, nil
}

// each measures on each processor, bound to it. Calls of libraries that start threads come before.
func (p processors) each(measure func() error) error {
	done := make(chan error)
	go func() {
		// The thread stays bound and ends with this goroutine, which keeps it.
		runtime.LockOSThread()
		done <- p.bound(measure)
	}()
	return <-done
}

func (p processors) bound(measure func() error) error {
	for _, processor := range p {
		if err := sys.SetAffinity(processor); err != nil {
			return err
		}
		if err := measure(); err != nil {
			return err
		}
	}
	return nil
}
