package host

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAllWhoWaitForAStreamLearnOfItsFailure: each of them would take the results for good.
func TestAllWhoWaitForAStreamLearnOfItsFailure(t *testing.T) {
	d := newDuo(t)
	synctest.Test(t, func(t *testing.T) {
		made, err := d.devices[0].NewStream()
		check(t, err)
		begin, errs := make(chan struct{}), make(chan error)
		check(t, made.Host(func() {
			<-begin
			panic("mine")
		}))
		const waiting = 3
		for range waiting {
			go func() { errs <- made.Synchronize(t.Context()) }()
		}
		<-time.After(time.Second) // a lock that is taken may be waited for by sleeping, too
		synctest.Wait()
		close(begin)
		for range waiting {
			if err := <-errs; err == nil || !strings.Contains(err.Error(), "mine") {
				t.Errorf("got %v", err)
			}
		}
		check(t, made.Synchronize(t.Context()))
		check(t, made.Close())
	})
}
