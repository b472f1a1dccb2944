package bench

import (
	"errors"
	"math/rand/v2"
	"runtime"

	"symmem/internal/sys"
)

// processors are those on which a rank measures one after the other. A processor of a virtual
// machine may be one thread of a core whose other thread is somebody else's, and half as fast then.
type processors []int

// anywhere is no processor: the system chooses.
const anywhere = -1

// processorsOf draws at most so many of those that this process may use. Ranks that may use the
// same ones draw so that no two are on one at the same time, as long as there are enough.
func processorsOf(rank, most int) (processors, error) {
	allowed, err := sys.Affinity()
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(uint64(len(allowed)), 0))
	r.Shuffle(len(allowed), func(i, j int) { allowed[i], allowed[j] = allowed[j], allowed[i] })
	var mine processors
	for n := range min(most, len(allowed)) {
		mine = append(mine, allowed[(rank+n)%len(allowed)])
	}
	return mine, nil
}

// each measures on the first of the processors, so many, bound to one at a time. Calls of libraries
// that start threads come before. Where it cannot be bound it measures all the same, and says so in
// the end: other ranks measure with it.
func (p processors) each(many int, measure func() error) error {
	done := make(chan error)
	go func() {
		// The thread stays bound and ends with this goroutine, which keeps it.
		runtime.LockOSThread()
		done <- p.bound(many, measure)
	}()
	return <-done
}

func (p processors) bound(many int, measure func() error) error {
	var unbound error
	for _, processor := range p[:many] {
		if processor != anywhere {
			unbound = errors.Join(unbound, sys.SetAffinity(processor))
		}
		if err := measure(); err != nil {
			return errors.Join(err, unbound)
		}
	}
	return unbound
}
