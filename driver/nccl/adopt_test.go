package nccl

import (
	"errors"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/cuda"
)

// TestNobodyAsksAboutAStreamThatWasGivenBack destroys streams as their owner may, as soon as they
// are closed, while others ask whether they are captured. CUDA does not survive a question about a
// stream that is gone.
func TestNobodyAsksAboutAStreamThatWasGivenBack(t *testing.T) {
	opened, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*Device)
	for range 300 {
		err = errors.Join(err, giveBack(d))
	}
	if err := errors.Join(err, d.Close()); err != nil {
		t.Error(err)
	}
}

// giveBack adopts a stream, and closes and destroys it while goroutines ask about it.
func giveBack(d *Device) error {
	var theirs cuda.Stream
	err := d.do(func() (err error) {
		theirs, err = d.cuda.StreamCreate(true)
		return err
	})
	if err != nil {
		return err
	}
	s, err := d.AdoptStream(uintptr(theirs))
	if err != nil {
		return err
	}
	var asking sync.WaitGroup
	ended := make(chan struct{})
	for range 4 {
		asking.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					_, _ = s.Captured() // that it is asked at all is what matters
				}
			}
		})
	}
	err = errors.Join(s.Close(), d.do(func() error { return d.cuda.StreamDestroy(theirs) }))
	close(ended)
	asking.Wait()
	return err
}
