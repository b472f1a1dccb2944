package bench

import (
	"errors"
	"math/rand/v2"
	"runtime"

	"symmem/internal/sys"
)

// processorsOf draws at most so many of the processors that this process may use, for one of the
// ranks of a machine, which measures on one after the other: a processor of a virtual machine may
// be one thread of a core whose other thread is somebody else's, and half as fast then. No two
// ranks get the same one as long as there are enough.
func processorsOf(rank, ranks, most int) ([]int, error) {
	allowed, err := sys.Affinity()
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(uint64(len(allowed)), 0))
	r.Shuffle(len(allowed), func(i, j int) { allowed[i], allowed[j] = allowed[j], allowed[i] })
	return deal(allowed, rank, ranks, most), nil
}

// deal gives processors to ranks: one to each, then the next.
func deal(allowed []int, rank, ranks, most int) (mine []int) {
	for n := range max(1, min(most, len(allowed)/ranks)) {
		mine = append(mine, allowed[(rank+n*ranks)%len(allowed)])
	}
	return mine
}

// onProcessor runs a function on a thread of its own that is bound to a processor. The thread ends
// with the goroutine, which stays locked to it; calls of libraries that start threads come before.
// Where it cannot be bound the function runs all the same, since others wait for it.
func onProcessor(processor int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := sys.SetAffinity(processor)
		done <- errors.Join(err, f())
	}()
	return <-done
}
