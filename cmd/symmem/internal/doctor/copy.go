package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"symmem/internal/cuda"
)

const (
	// copyBytes is large enough to reach a link's full speed.
	copyBytes = int64(128) << 20
	// copies is the number of timed copies, which together take about a millisecond.
	copies = 4
)

// MeasureCopies measures the speed of copies to a GPU from each GPU that it can access. For each
// measurement, MeasureCopies temporarily allocates 128 MiB on both GPUs. Other work on the GPUs or
// links lowers the speed.
func MeasureCopies(ordinal int) (all []Copy, err error) {
	driver, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	n, err := driver.DeviceCount()
	if err != nil {
		return nil, err
	}
	target, err := driver.Device(ordinal)
	if err != nil {
		return nil, err
	}
	context, err := target.RetainPrimary()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { err = errors.Join(err, driver.SetCurrent(0), target.ReleasePrimary()) }()
	if err := driver.SetCurrent(context); err != nil {
		return nil, err
	}
	for peer := range n {
		source, err := driver.Device(peer)
		if err != nil {
			return all, err
		}
		if can, err := target.CanAccessPeer(source); peer == ordinal || err != nil || !can {
			continue
		}
		speed, err := measureCopy(driver, source, target)
		if err != nil {
			return all, fmt.Errorf("copying from GPU %d to GPU %d: %w", peer, ordinal, err)
		}
		all = append(all, Copy{From: peer, To: ordinal, GBps: speed})
	}
	return all, nil
}

// cleanup lists functions to call in reverse order.
type cleanup []func() error

func (c *cleanup) add(f func() error) { *c = append(*c, f) }

func (c *cleanup) run() error {
	var errs []error
	for _, f := range slices.Backward(*c) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// measureCopy returns the copy speed between two GPUs in GB/s. The context of dst must be current
// on the calling thread.
func measureCopy(driver *cuda.Driver, src, dst cuda.Device) (speed float64, err error) {
	var cleanups cleanup
	defer func() { err = errors.Join(err, cleanups.run()) }()
	source, err := allocate(driver, src, dst, &cleanups)
	if err != nil {
		return 0, err
	}
	target, err := allocate(driver, dst, dst, &cleanups)
	if err != nil {
		return 0, err
	}
	stream, err := driver.StreamCreate()
	if err != nil {
		return 0, err
	}
	cleanups.add(func() error { return driver.StreamDestroy(stream) })
	var events [2]cuda.Event
	for i := range events {
		if events[i], err = driver.EventCreate(0); err != nil {
			return 0, err
		}
		cleanups.add(func() error { return driver.EventDestroy(events[i]) })
	}
	return timeCopies(driver, target, source, stream, events)
}

// allocate allocates memory on owner and maps it for access by user. Running cleanups frees the
// memory.
func allocate(
	driver *cuda.Driver, owner, user cuda.Device, cleanups *cleanup,
) (address uintptr, err error) {
	prop := cuda.PinnedMemory(owner, cuda.HandlePosixFD, false)
	unit, err := driver.Granularity(prop, true)
	if err != nil {
		return 0, err
	}
	bytes := (copyBytes + unit - 1) / unit * unit
	if address, err = driver.AddressReserve(bytes, unit); err != nil {
		return 0, err
	}
	cleanups.add(func() error { return driver.AddressFree(address, bytes) })
	handle, err := driver.Create(bytes, prop)
	if err != nil {
		return 0, err
	}
	if err = driver.Map(address, bytes, handle); err == nil {
		cleanups.add(func() error { return driver.Unmap(address, bytes) })
	}
	// The mapping keeps the memory alive, so the handle can be released.
	if err = errors.Join(err, driver.Release(handle)); err != nil {
		return 0, err
	}
	return address, driver.SetAccess(address, bytes, user)
}

func timeCopies(
	driver *cuda.Driver, dst, src uintptr, stream cuda.Stream, events [2]cuda.Event,
) (speed float64, err error) {
	for i := range copies + 1 {
		if i == 1 { // the first copy is a warm-up
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
	duration, err := driver.EventElapsedTime(events[0], events[1])
	return float64(copies*copyBytes) / max(float64(duration.Nanoseconds()), 1), err
}
