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
// ordinal. It leaves out GPUs whose memory the given GPU cannot access. It needs 128 MiB of memory
// on both GPUs of a copy. With an error, it returns the speeds measured so far.
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

	runtime.LockOSThread() // the current context belongs to the thread
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
	defer func() {
		cleanupErr := cleanups.run()
		err = errors.Join(err, cleanupErr)
	}()
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
	const noFlags = 0
	start, err := driver.EventCreate(noFlags)
	if err != nil {
		return 0, err
	}

	cleanups.add(func() error { return driver.EventDestroy(start) })
	end, err := driver.EventCreate(noFlags)
	if err != nil {
		return 0, err
	}

	cleanups.add(func() error { return driver.EventDestroy(end) })
	c := timedCopies{
		driver: driver, dst: target, src: source, stream: stream, start: start, end: end,
	}
	return c.measure()
}

// allocate allocates at least copyBytes of memory on owner, and gives user access. It adds
// functions that free the memory to cleanups, even if it returns an error.
func allocate(
	driver *cuda.Driver, owner, user cuda.Device, cleanups *cleanupList,
) (uintptr, error) {
	const rdma, recommended = false, true
	properties := cuda.PinnedMemory(owner, cuda.HandlePosixFD, rdma)
	granularity, err := driver.Granularity(properties, recommended)
	if err != nil {
		return 0, err
	}

	bytes := (copyBytes + granularity - 1) / granularity * granularity // rounded up
	// address must not be a named result: returning 0 would change it for the cleanups.
	address, err := driver.AddressReserve(bytes, granularity)
	if err != nil {
		return 0, err
	}

	cleanups.add(func() error { return driver.AddressFree(address, bytes) })
	handle, err := driver.Create(bytes, properties)
	if err != nil {
		return 0, err
	}

	mapErr := driver.Map(address, bytes, handle)
	if mapErr == nil {
		cleanups.add(func() error { return driver.Unmap(address, bytes) })
	}

	releaseErr := driver.Release(handle) // the mapping, if there is one, keeps the memory alive
	if err := errors.Join(mapErr, releaseErr); err != nil {
		return 0, err
	}

	return address, driver.SetAccess(address, bytes, user)
}

// timedCopies describes copies to measure.
type timedCopies struct {
	driver     *cuda.Driver
	dst, src   uintptr // addresses of at least copyBytes
	stream     cuda.Stream
	start, end cuda.Event // to be recorded before and after the copies
}

// measure makes a copy to warm up and timedCopyCount timed copies. It returns the speed of the
// timed copies in GB/s.
func (c *timedCopies) measure() (gbps float64, err error) {
	if err := c.queueCopy(); err != nil {
		return 0, err
	}

	if err := c.driver.EventRecord(c.start, c.stream); err != nil {
		return 0, err
	}

	for range timedCopyCount {
		if err := c.queueCopy(); err != nil {
			return 0, err
		}
	}

	if err := c.driver.EventRecord(c.end, c.stream); err != nil {
		return 0, err
	}

	if err := c.driver.StreamSynchronize(c.stream); err != nil {
		return 0, err
	}

	duration, err := c.driver.EventElapsedTime(c.start, c.end)
	if err != nil {
		return 0, err
	}

	nanoseconds := max(float64(duration.Nanoseconds()), 1) // avoids a division by 0
	return float64(timedCopyCount*copyBytes) / nanoseconds, nil
}

func (c *timedCopies) queueCopy() error {
	return c.driver.MemcpyAsync(c.dst, c.src, copyBytes, c.stream)
}
