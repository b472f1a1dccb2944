package host

import (
	"errors"
	"fmt"
	"os"

	"symmem/driver"
	"symmem/internal/sys"
)

// arena is a reserved address range. Map backs parts of it with segments.
type arena struct {
	device    *Device
	addresses *sys.Mapping
}

func (a *arena) Address() uintptr { return a.addresses.Address() }

// Keep shrinks the arena to the given size.
func (a *arena) Keep(bytes int64) error {
	if a.device.cfg.Scatter != 0 { // segments have random offsets
		return nil
	}

	return a.addresses.Shrink(bytes)
}

// Map creates a segment and maps it at the offset, or at a random one if Config.Scatter is set.
func (a *arena) Map(offset, bytes int64) (driver.Segment, error) {
	isSizeValid := bytes > 0 && bytes%granularity == 0
	isOffsetValid := offset >= 0 && offset%granularity == 0
	if !isSizeValid || !isOffsetValid {
		return nil, fmt.Errorf("mapping %d bytes at offset %d: size and offset must be multiples "+
			"of %d", bytes, offset, granularity)
	}

	file, err := createSegmentFile(bytes)
	if err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}

	memory, err := a.mapFile(offset, file, bytes)
	if err != nil {
		err = &driver.OutOfMemoryError{Requested: bytes, Cause: err}
		closeErr := file.Close()
		return nil, errors.Join(err, closeErr)
	}

	return &segment{device: a.device, file: file, memory: memory}, nil
}

func (a *arena) mapFile(offset int64, file *os.File, bytes int64) (*sys.Mapping, error) {
	arenaBytes := a.addresses.Bytes()
	chosenOffset, err := a.device.scatter.Draw(a.Address(), arenaBytes, offset, bytes)
	if err != nil {
		return nil, err
	}

	return a.addresses.MapAt(chosenOffset, file, bytes)
}

func (a *arena) Close() error { return a.device.abandonedWork.unmapAfterWork(a.addresses.Close) }
