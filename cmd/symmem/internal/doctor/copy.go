package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"symmem/internal/cuda"
)

const (
	copyBytes      = int64(128) << 20 // size of a copy, large enough to reach a link's full speed
	timedCopyCount = 4                // number of timed copies, which take about a millisecond
)

// MeasureCopies measures the speed of copies from each other GPU to the GPU with the given
// ordinal. It skips GPUs whose memory that GPU cannot access. It needs 128 MiB of memory on both
// GPUs of a copy.
func MeasureCopies(ordinal int) (all []CopySpeed, err error) {
	driver, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	gpuCount, err := driver.DeviceCount()
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
	for peer := range gpuCount {
		source, err := driver.Device(peer)
		if err != nil {
			return all, err
		}
		if peer == ordinal {
			continue
		}
		hasAccess, err := target.CanAccessPeer(source)
		if err != nil || !hasAccess {
			continue
		}
		speed, err := measureCopy(driver, source, target)
		if err != nil {
			return all, fmt.Errorf("copying from GPU %d to GPU %d: %w", peer, ordinal, err)
		}
		all = append(all, CopySpeed{From: peer, To: ordinal, GBps: speed})
	}
	return all, nil
}

// cleanupList lists functions that release resources. Its method run calls them in reverse order.
type cleanupList []func() error

func (c *cleanupList) add(f func() error) { *c = append(*c, f) }

func (c *cleanupList) run() error {
	var errs []error
	for _, f := range slices.Backward(*c) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// measureCopy returns the speed of copies from src to dst in GB/s. The context of dst must be
// current on the calling thread.
func measureCopy(driver *cuda.Driver, src, dst cuda.Device) (gbps float64, err error) {
	var cleanups cleanupList
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
	var events [2]cuda.Event // start and end of the timed copies
	for i := range events {
		if events[i], err = driver.EventCreate(0); err != nil {
			return 0, err
		}
		cleanups.add(func() error { return driver.EventDestroy(events[i]) })
	}
	return timeCopies(driver, target, source, stream, events)
}

// allocate allocates at least copyBytes of memory on owner, and gives user access. It adds
// functions that free the memory to cleanups.
func allocate(
	driver *cuda.Driver, owner, user cuda.Device, cleanups *cleanupList,
) (address uintptr, err error) {
	const rdma, recommended = false, true
	properties := cuda.PinnedMemory(owner, cuda.HandlePosixFD, rdma)
	granularity, err := driver.Granularity(properties, recommended)
	if err != nil {
		return 0, err
	}
	bytes := (copyBytes + granularity - 1) / granularity * granularity
	if address, err = driver.AddressReserve(bytes, granularity); err != nil {
		return 0, err
	}
	cleanups.add(func() error { return driver.AddressFree(address, bytes) })
	handle, err := driver.Create(bytes, properties)
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

// timeCopies makes a copy to warm up and timedCopyCount timed copies, and returns their speed in
// GB/s. It records the events before and after the timed copies.
func timeCopies(
	driver *cuda.Driver, dst, src uintptr, stream cuda.Stream, events [2]cuda.Event,
) (gbps float64, err error) {
	if err := driver.MemcpyAsync(dst, src, copyBytes, stream); err != nil {
		return 0, err
	}
	if err := driver.EventRecord(events[0], stream); err != nil {
		return 0, err
	}
	for range timedCopyCount {
		if err := driver.MemcpyAsync(dst, src, copyBytes, stream); err != nil {
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
	if err != nil {
		return 0, err
	}
	return float64(timedCopyCount*copyBytes) / max(float64(duration.Nanoseconds()), 1), nil
}
