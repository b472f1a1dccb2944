package ranktest

import (
	"errors"
	"io"
	"testing"
)

func TestRanksRunConcurrently(t *testing.T) {
	arrived, allArrived := make(chan int, 3), make(chan struct{})
	go func() {
		for range 3 {
			<-arrived
		}

		close(allArrived)
	}()
	errs := CollectErrors(3, func(rank int) error {
		arrived <- rank
		<-allArrived // closed only if all three run concurrently
		if rank == 1 {
			return io.EOF
		}

		return nil
	})
	if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], io.EOF) ||
		errs[1].Error() != "rank 1: EOF" {
		t.Errorf("CollectErrors = %v; want EOF from rank 1 only", errs)
	}

	if err := Run(2, func(int) error { return nil }); err != nil {
		t.Error(err)
	}
}
