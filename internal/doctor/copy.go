package doctor

import (
	"errors"
	"fmt"
	"runtime"

	"symmem/internal/cuda"
)

const (
	// copyBytes is long enough for the speed of a link, and copies are repeated to fill a
	// millisecond or so.
	copyBytes = int64(128) << 20
	copies    = 4
)

// MeasureCopies copies from the memory of every other GPU that this process sees to that of one
// GPU, and returns how fast. 128 MiB of both are taken for a moment. Work of others on the GPUs or
// the links makes it slower.
func MeasureCopies(ordinal int) (all []Copy, err error) {
	driver, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	n, err := driver.DeviceCount()
	if err != nil {
		return nil, err
	}
	to, err := driver.Device(ordinal)
	if err != nil {
		return nil, err
	}
	context, err := to.RetainPrimary()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { err = errors.Join(err, driver.SetCurrent(0), to.ReleasePrimary()) }()
	if err := driver.SetCurrent(context); err != nil {
		return nil, err
	}
	for peer := range n {
		from, err := driver.Device(peer)
		if err != nil {
			return all, err
		}
		if can, err := to.CanAccessPeer(from); peer == ordinal || err != nil || !can {
			continue
		}
		speed, err := measureCopy(driver, from, to)
		if err != nil {
			return all, fmt.Errorf("copying from GPU %d to GPU %d: %w", peer, ordinal, err)
		}
		all = append(all, Copy{From: peer, To: ordinal, GBps: speed})
	}
	return all, nil
}

// measureCopy is one pair, in GB/s. The device that copies is current on the thread.
func measureCopy(driver *cuda.Driver, from, to cuda.Device) (speed float64, err error) {
	source, err := newLoan(driver, from, to)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, source.back(driver)) }()
	target, err := newLoan(driver, to, to)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, target.back(driver)) }()
	return timeCopies(driver, target.address, source.address)
}

func timeCopies(driver *cuda.Driver, dst, src uintptr) (speed float64, err error) {
	stream, err := driver.StreamCreate(true)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, driver.StreamDestroy(stream)) }()
	var events [2]cuda.Event
	for i := range events {
		if events[i], err = driver.EventCreate(0); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, driver.EventDestroy(events[i])) }()
	}
	// The first copy is not counted.
	for i := range copies + 1 {
		if i == 1 {
			err = driver.EventRecord(events[0], stream)
		}
		if err = errors.Join(err, driver.MemcpyAsync(dst, src, copyBytes, stream)); err != nil {
			return 0, err
		}
	}
	if err := driver.EventRecord(events[1], stream); err != nil {
		return 0, err
	}
	if err := driver.StreamSynchronize(stream); err != nil {
		return 0, err
	}
	took, err := driver.EventElapsedTime(events[0], events[1])
	return float64(copies*copyBytes) / max(float64(took.Nanoseconds()), 1), err
}

// loan is memory of one GPU that another can reach. States: mapped, given back.
type loan struct {
	address uintptr
	bytes   int64
	mapped  bool
}

// newLoan maps memory of one GPU for another. It leaves nothing behind when it fails.
func newLoan(driver *cuda.Driver, owner, user cuda.Device) (l *loan, err error) {
	prop := cuda.PinnedMemory(owner, cuda.HandlePosixFD, false)
	unit, err := driver.Granularity(prop, true)
	if err != nil {
		return nil, err
	}
	l = &loan{bytes: (copyBytes + unit - 1) / unit * unit}
	if l.address, err = driver.AddressReserve(l.bytes, unit); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.back(driver))
		}
	}()
	handle, err := driver.Create(l.bytes, prop)
	if err != nil {
		return nil, err
	}
	err = driver.Map(l.address, l.bytes, 0, handle)
	l.mapped = err == nil
	// The mapping keeps the memory.
	if err = errors.Join(err, driver.Release(handle)); err != nil {
		return nil, err
	}
	return l, driver.SetAccess(l.address, l.bytes, user)
}

// back gives the memory back.
func (l *loan) back(driver *cuda.Driver) error {
	var err error
	if l.mapped {
		err = driver.Unmap(l.address, l.bytes)
	}
	return errors.Join(err, driver.AddressFree(l.address, l.bytes))
}
