// Package ranktest runs the ranks of a test as goroutines of one process.
package ranktest

import (
	"errors"
	"fmt"
	"sync"
)

// Outcomes runs a function for each of n ranks at once and returns their errors by rank, each with
// the number of its rank.
func Outcomes(n int, f func(rank int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			if err := f(rank); err != nil {
				errs[rank] = fmt.Errorf("rank %d: %w", rank, err)
			}
		})
	}
	all.Wait()
	return errs
}

// Each runs a function for each of n ranks at once and joins their errors.
func Each(n int, f func(rank int) error) error { return errors.Join(Outcomes(n, f)...) }
