package ranktest

import (
	"errors"
	"io"
	"testing"
)

func TestRanksRunAtOnceAndTheirErrorsAreByRank(t *testing.T) {
	arrived, all := make(chan int, 3), make(chan struct{})
	go func() {
		for range 3 {
			<-arrived
		}
		close(all)
	}()
	errs := Outcomes(3, func(rank int) error {
		arrived <- rank
		<-all // which comes only if all three run
		if rank == 1 {
			return io.EOF
		}
		return nil
	})
	if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], io.EOF) ||
		errs[1].Error() != "rank 1: EOF" {
		t.Errorf("got %v", errs)
	}
	if err := Each(2, func(int) error { return nil }); err != nil {
		t.Error(err)
	}
}
