package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"

	"symmem/internal/sys"
)

// processors are those on which a rank measures, one after the other. A processor of a virtual
// machine may be one thread of a core whose other thread is somebody else's, and half as fast then.
type processors []int

// errUnbound says that a rank could not be bound to a processor, where it measured all the same.
var errUnbound = errors.New("not bound to a processor")

// processorsOf draws at most so many of those that this process may use, for one of the ranks of a
// machine. No two ranks get the same one as long as there are enough.
func processorsOf(rank, ranks, most int) (processors, error) {
	allowed, err := sys.Affinity()
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(uint64(len(allowed)), 0))
	r.Shuffle(len(allowed), func(i, j int) { allowed[i], allowed[j] = allowed[j], allowed[i] })
	return deal(allowed, rank, ranks, most), nil
}

// deal gives processors to ranks: one to each, then the next.
func deal(allowed []int, rank, ranks, most int) (mine processors) {
	for n := range max(1, min(most, len(allowed)/ranks)) {
		mine = append(mine, allowed[(rank+n*ranks)%len(allowed)])
	}
	return mine
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
		if err := sys.SetAffinity(processor); err != nil {
			unbound = fmt.Errorf("%w %d: %w", errUnbound, processor, err)
		}
		if err := measure(); err != nil {
			return err
		}
	}
	return unbound
}
