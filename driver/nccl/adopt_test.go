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

// TestARefusalOnABusyStreamOfAnotherLibraryIsToldAtOnce: its owner waits for it without us, so who
// heard of it later would have taken what was not computed for a result.
func TestARefusalOnABusyStreamOfAnotherLibraryIsToldAtOnce(t *testing.T) {
	w := newTeam(t, 2, 20*time.Second)
	w.play(0, 1)
	w.must(func(m *mate) error {
		theirs, adopted, err := m.adopt(1)
		if err != nil {
			return err
		}
		end, err := m.occupy(theirs[0])
		if err != nil {
			return err
		}
		plan, err := m.group.Prepare(driver.Call{
			Operation: driver.Barrier, DataType: driver.Uint8, Path: driver.PathPlain,
			Digest: uint64(m.rank),
		})
		err = errors.Join(err, m.group.Launch(adopted[0], plan))
		if differs := (*driver.MismatchError)(nil); !errors.As(err, &differs) {
			t.Errorf("rank %d launches another call than the other: got %v", m.rank, err)
		}
		return errors.Join(end(), adopted[0].Synchronize(t.Context()), adopted[0].Close(),
			m.device.do(func() error { return m.device.cuda.StreamDestroy(theirs[0]) }))
	})
}

// occupy gives a stream something to wait for until end is called.
func (m *mate) occupy(s cuda.Stream) (end func() error, err error) {
	d := m.device
	err = d.do(func() error {
		word, err := d.words.take(d.cuda)
		if err != nil {
			return err
		}
		end = func() error { return d.do(func() error { word.set(1); return nil }) }
		return d.cuda.StreamWaitValue(s, word.address(), 1, cuda.WaitEqual)
	})
	return end, err
}
