package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"symmem/internal/cuda"
)

// To measure the speed of the link from GPU 1 (the source) to GPU 0 (the target), doctor copies 128
// MiB: once to warm up, and then four times. The GPU records the times before and after the four
// copies. If they take 10 ms, the speed is 4 * 128 MiB / 10 ms = 54 GB/s.

const (
	copyBytes      = int64(128) << 20 // large enough to reach a link's full speed
	timedCopyCount = 4                // number of copies that are timed together
)

// MeasureCopies measures the speed of copies from each other GPU to the GPU with the given ordinal.
// It leaves out GPUs whose memory the given GPU cannot access. It needs 128 MiB of memory on both
// GPUs of a copy. With an error, it returns the speeds measured so far.
func MeasureCopies(ordinal int) (speeds []CopySpeed, err error) {
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

	runtime.LockOSThread() // CUDA calls use the context that is current on their thread
	defer runtime.UnlockOSThread()
	defer func() {
		const noContext = 0
		unsetErr := driver.SetCurrent(noContext)
		releaseErr := target.ReleasePrimary()
		err = errors.Join(err, unsetErr, releaseErr)
	}()
	if err := driver.SetCurrent(context); err != nil {
		return nil, err
	}

	return measureCopiesTo(driver, target, gpuCount)
}

// measureCopiesTo is MeasureCopies for a target whose context is current on the calling thread.
func measureCopiesTo(
	driver *cuda.Driver, target cuda.Device, gpuCount int,
) (speeds []CopySpeed, err error) {
	ordinal := target.Ordinal()
	for peer := range gpuCount {
		source, err := driver.Device(peer)
		if err != nil {
			return speeds, err
		}

		if peer == ordinal {
			continue
		}

		hasAccess, err := target.CanAccessPeer(source)
		if err != nil || !hasAccess {
			continue
		}

		gbps, err := measureCopy(driver, source, target)
		if err != nil {
			return speeds, fmt.Errorf("copying from GPU %d to GPU %d: %w", peer, ordinal, err)
		}

		speeds = append(speeds, CopySpeed{From: peer, To: ordinal, GBps: gbps})
	}

	return speeds, nil
}

// measureCopy returns the speed of copies from source to target in GB/s. The context of target must
// be current on the calling thread.
func measureCopy(driver *cuda.Driver, source, target cuda.Device) (gbps float64, err error) {
	m := copyMeasurement{driver: driver}
	defer func() {
		cleanupErr := m.cleanups.run()
		err = errors.Join(err, cleanupErr)
	}()
	if err := m.allocate(source, target); err != nil {
		return 0, err
	}

	return m.measure()
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

// copyMeasurement holds the resources for measuring copies between two GPUs.
type copyMeasurement struct {
	driver     *cuda.Driver
	from, to   uintptr // addresses of at least copyBytes
	stream     cuda.Stream
	start, end cuda.Event // record the times before and after the timed copies
	cleanups   cleanupList
}

// allocate allocates the resources. The caller must run m.cleanups, even after an error.
func (m *copyMeasurement) allocate(source, target cuda.Device) (err error) {
	m.from, err = m.allocateMemory(source, target)
	if err != nil {
		return err
	}

	m.to, err = m.allocateMemory(target, target)
	if err != nil {
		return err
	}

	m.stream, err = m.driver.StreamCreate()
	if err != nil {
		return err
	}

	m.cleanups.add(func() error { return m.driver.StreamDestroy(m.stream) })
	m.start, err = m.createEvent()
	if err != nil {
		return err
	}

	m.end, err = m.createEvent()
	return err
}

// allocateMemory allocates at least copyBytes of memory on owner, and gives user access.
func (m *copyMeasurement) allocateMemory(owner, user cuda.Device) (uintptr, error) {
	driver := m.driver
	const rdma, recommended = false, true
	properties := cuda.PinnedMemory(owner, cuda.HandlePosixFD, rdma)
	granularity, err := driver.Granularity(properties, recommended)
	if err != nil {
		return 0, err
	}

	bytes := (copyBytes + granularity - 1) / granularity * granularity // rounded up
	// The cleanups use this variable. It is not a named result, because a return of 0 would change it.
	address, err := driver.AddressReserve(bytes, granularity)
	if err != nil {
		return 0, err
	}

	m.cleanups.add(func() error { return driver.AddressFree(address, bytes) })
	handle, err := driver.Create(bytes, properties)
	if err != nil {
		return 0, err
	}

	mapErr := driver.Map(address, bytes, handle)
	if mapErr == nil {
		m.cleanups.add(func() error { return driver.Unmap(address, bytes) })
	}

	releaseErr := driver.Release(handle) // the mapping, if there is one, keeps the memory alive
	if err := errors.Join(mapErr, releaseErr); err != nil {
		return 0, err
	}

	return address, driver.SetAccess(address, bytes, user)
}

// createEvent creates an event, with which a stream records a time.
func (m *copyMeasurement) createEvent() (cuda.Event, error) {
	const noFlags = 0
	event, err := m.driver.EventCreate(noFlags)
	if err != nil {
		return event, err
	}

	m.cleanups.add(func() error { return m.driver.EventDestroy(event) })
	return event, nil
}

// measure makes the copies and returns the speed of the timed ones in GB/s.
func (m *copyMeasurement) measure() (gbps float64, err error) {
	if err := m.queueCopy(); err != nil { // warms up
		return 0, err
	}

	if err := m.driver.EventRecord(m.start, m.stream); err != nil {
		return 0, err
	}

	for range timedCopyCount {
		if err := m.queueCopy(); err != nil {
			return 0, err
		}
	}

	if err := m.driver.EventRecord(m.end, m.stream); err != nil {
		return 0, err
	}

	if err := m.driver.StreamSynchronize(m.stream); err != nil {
		return 0, err
	}

	duration, err := m.driver.EventElapsedTime(m.start, m.end)
	if err != nil {
		return 0, err
	}

	nanoseconds := max(float64(duration.Nanoseconds()), 1) // avoids a division by 0
	bytesPerNanosecond := float64(timedCopyCount*copyBytes) / nanoseconds
	return bytesPerNanosecond, nil // the same number as in GB/s
}

// queueCopy queues a copy. The stream executes its copies and events in order.
func (m *copyMeasurement) queueCopy() error {
	return m.driver.MemcpyAsync(m.to, m.from, copyBytes, m.stream)
}
