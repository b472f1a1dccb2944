// Package ranktest runs the ranks of a test as goroutines of one process.
package ranktest

import (
	"errors"
	"fmt"
	"sync"
)

// CollectErrors calls f concurrently for n ranks and returns the errors by rank.
func CollectErrors(n int, f func(rank int) error) []error {
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for rank := range n {
		ranks.Go(func() {
			if err := f(rank); err != nil {
				errs[rank] = fmt.Errorf("rank %d: %w", rank, err)
			}
		})
	}

	ranks.Wait()
	return errs
}

// Run calls f concurrently for n ranks and joins the errors.
func Run(n int, f func(rank int) error) error { return errors.Join(CollectErrors(n, f)...) }
