package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"symmem/internal/cuda"
)

const (
	copyBytes      = int64(128) << 20 // large enough to reach a link's full speed
	timedCopyCount = 4                // after one warm-up copy
)

// MeasureCopies measures the speed of copies to the GPU with the given ordinal from each GPU whose
// memory it can access. On an error, it also returns the speeds measured so far.
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

	primary, err := target.RetainPrimary()
	if err != nil {
		return nil, err
	}

	runtime.LockOSThread() // each thread has its own current context
	defer func() {
		const noContext = 0
		unsetErr := driver.SetCurrent(noContext)
		releaseErr := target.ReleasePrimary()
		err = errors.Join(err, unsetErr, releaseErr)
		runtime.UnlockOSThread()
	}()
	err = driver.SetCurrent(primary)
	if err != nil {
		return nil, err
	}

	return measureCopiesTo(driver, target, gpuCount)
}

// measureCopiesTo requires that the context of target is current.
func measureCopiesTo(driver *cuda.Driver, target cuda.Device, gpuCount int) ([]CopySpeed, error) {
	var speeds []CopySpeed
	to := target.Ordinal()
	for from := range gpuCount {
		if from == to {
			continue
		}

		source, err := driver.Device(from)
		if err != nil {
			return speeds, err
		}

		hasAccess, err := target.CanAccessPeer(source)
		if err != nil || !hasAccess { // a failed query counts as no access
			continue
		}

		gbps, err := measureCopy(driver, source, target)
		if err != nil {
			return speeds, fmt.Errorf("copying from GPU %d to GPU %d: %w", from, to, err)
		}

		speeds = append(speeds, CopySpeed{From: from, To: to, GBps: gbps})
	}

	return speeds, nil
}

// measureCopy requires that the context of target is current.
func measureCopy(driver *cuda.Driver, source, target cuda.Device) (gbps float64, err error) {
	m := copyMeasurement{driver: driver}
	defer func() {
		cleanupErr := m.cleanups.run()
		err = errors.Join(err, cleanupErr)
	}()
	err = m.allocate(source, target)
	if err != nil {
		return 0, err
	}

	return m.measure()
}

// cleanupList is a stack of functions that release resources.
type cleanupList []func() error

func (c *cleanupList) add(f func() error) { *c = append(*c, f) }

// run calls the functions in reverse order.
func (c *cleanupList) run() error {
	var errs []error
	for _, f := range slices.Backward(*c) {
		errs = append(errs, f())
	}

	return errors.Join(errs...)
}

// copyMeasurement holds the resources for copies between two GPUs.
type copyMeasurement struct {
	driver        *cuda.Driver
	sourceAddress uintptr // buffer on the source GPU
	targetAddress uintptr // buffer on the target GPU
	stream        cuda.Stream
	start, end    cuda.Event // recorded before and after the timed copies
	cleanups      cleanupList
}

// allocate creates the buffers, the stream, and the events. The caller must run m.cleanups, even
// after an error.
func (m *copyMeasurement) allocate(source, target cuda.Device) (err error) {
	m.sourceAddress, err = m.allocateBuffer(source, target)
	if err != nil {
		return err
	}

	m.targetAddress, err = m.allocateBuffer(target, target)
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

// allocateBuffer allocates at least copyBytes of memory on owner, for access by accessor.
func (m *copyMeasurement) allocateBuffer(owner, accessor cuda.Device) (uintptr, error) {
	driver := m.driver
	const rdma = false // no network card accesses the memory
	const recommended = true
	properties := cuda.PinnedMemory(owner, cuda.HandlePosixFD, rdma)
	granularity, err := driver.Granularity(properties, recommended)
	if err != nil {
		return 0, err
	}

	mappingCount := (copyBytes + granularity - 1) / granularity // rounded up
	bytes := mappingCount * granularity
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

	releaseErr := driver.Release(handle) // the mapping keeps the memory alive
	if err := errors.Join(mapErr, releaseErr); err != nil {
		return 0, err
	}

	err = driver.SetAccess(address, bytes, accessor)
	return address, err
}

func (m *copyMeasurement) createEvent() (cuda.Event, error) {
	const noFlags = 0
	event, err := m.driver.EventCreate(noFlags)
	if err != nil {
		return event, err
	}

	m.cleanups.add(func() error { return m.driver.EventDestroy(event) })
	return event, nil
}

func (m *copyMeasurement) measure() (gbps float64, err error) {
	if err := m.queueCopy(); err != nil { // warm-up, not timed
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
	return bytesPerNanosecond, nil // 1 byte per nanosecond is 1 GB/s
}

func (m *copyMeasurement) queueCopy() error {
	return m.driver.MemcpyAsync(m.targetAddress, m.sourceAddress, copyBytes, m.stream)
}
